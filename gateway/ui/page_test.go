package ui_test

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/ui"
)

func cluster() ui.Status {
	day := func(d int) time.Time { return time.Date(2026, 11, d, 0, 0, 0, 0, time.UTC) }
	return ui.Status{
		Version: "v1", Role: "gateway", Now: day(21).Add(12 * time.Hour), CoordinationAge: 300 * time.Millisecond,
		Problems: []string{`server "<s3>" is silent`},
		Servers:  []ui.Server{{ID: "s1", Live: true, Load: 0.25, Leads: 2, Bytes: 3 << 30}, {ID: "s3", Draining: true}},
		Tables: []ui.Table{{Name: "default", Seq: 7, Width: 24 * time.Hour, Partitions: []ui.Partition{
			{ID: 1, From: day(20), To: day(21), RingHi: 1, State: "live", Leader: "s1", Epoch: 4, Rows: 1234567, Bytes: 1 << 20, LeaseAge: time.Hour, Servers: []string{"s1", "s2"}},
			{ID: 2, From: day(21), To: day(22), RingHi: 0.5, State: "live", Servers: []string{"s3"}},
			{ID: 3, From: day(21), To: day(22), RingLo: 0.5, RingHi: 1, State: "live", Leader: "s2", Offline: "disk is bad", Servers: []string{"s2"}},
		}}},
		Topics: []ui.Topic{{Cluster: "main", Topic: "metrics", Partition: 3, Lag: 42, Rows: 9000, RowsPerSecond: 1500, Poison: 1}},
	}
}

func get(t *testing.T, h http.Handler) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestPageShowsTheKeyspaceAndWhatIsWrong(t *testing.T) {
	body := get(t, ui.Page(func(context.Context) ui.Status { return cluster() }))
	for _, want := range []string{
		"Spillway v1", "server &#34;&lt;s3&gt;&#34; is silent", "3.0 GiB", "25 %", "silent", "draining", "1,234,567 rows",
		`<rect class="led" x="0" y="0" width="500" height="120"`, `<rect class="unled" x="500" y="60" width="500" height="60"`,
		`<rect class="offline" x="500" y="0" width="500" height="60"`, "led by s1, epoch 4 since 1h0m0s", "offline: disk is bad", "nobody leads it",
		`<line class="now" x1="750"`, "metrics", ">42<", "1,500/s",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(body, "ZgotmplZ") {
		t.Error("the template refused a value")
	}
	wellFormed(t, body)
}

// wellFormed checks that every element that is opened is closed, void ones apart.
func wellFormed(t *testing.T, body string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(body))
	d.Strict = false
	d.AutoClose, d.Entity = xml.HTMLAutoClose, xml.HTMLEntity
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("the page is not well formed: %v", err)
		}
	}
}

func TestAnEmptyProcessHasAPageToo(t *testing.T) {
	body := get(t, ui.Page(func(context.Context) ui.Status { return ui.Status{Role: "standalone", CoordinationAge: -1} }))
	if !strings.Contains(body, "the first write makes one") || strings.Contains(body, "coordination store") {
		t.Errorf("%s", body)
	}
	wellFormed(t, body)
}

func TestAHugeMapIsDrawnInPart(t *testing.T) {
	s := cluster()
	s.Tables[0].Partitions = nil
	for i := range 3 * ui.PartitionsShown {
		from := time.Unix(int64(i), 0)
		s.Tables[0].Partitions = append(s.Tables[0].Partitions, ui.Partition{ID: uint64(i + 1), From: from, To: from.Add(time.Second), RingHi: 1})
	}
	body := get(t, ui.Page(func(context.Context) ui.Status { return s }))
	if n := strings.Count(body, "<rect class="); n != ui.PartitionsShown {
		t.Errorf("%d rectangles", n)
	}
	if !strings.Contains(body, fmt.Sprintf("the %d oldest are not drawn", 2*ui.PartitionsShown)) {
		t.Error("does not say what is left out")
	}
}

func TestPartitionsAtTheEndsOfTimeHaveFiniteRectangles(t *testing.T) {
	s := cluster()
	s.Tables[0].Partitions = []ui.Partition{
		{ID: 1, From: time.Unix(0, -1<<63), To: time.Unix(0, 0), RingHi: 1}, {ID: 2, From: time.Unix(0, 0), To: time.Unix(0, 1<<63-1), RingHi: 1},
	}
	body := get(t, ui.Page(func(context.Context) ui.Status { return s }))
	if strings.Contains(body, "NaN") || strings.Contains(body, `"+Inf`) || !strings.Contains(body, `x="500`) {
		t.Errorf("%s", body)
	}
}

func TestJSONHoldsTheSame(t *testing.T) {
	var got struct {
		Status string
		Data   ui.Status
	}
	if err := json.Unmarshal([]byte(get(t, ui.JSON(func(context.Context) ui.Status { return cluster() }))), &got); err != nil {
		t.Fatal(err)
	}
	if got.Status != "success" || len(got.Data.Tables[0].Partitions) != 3 || got.Data.Tables[0].Partitions[2].Offline != "disk is bad" || got.Data.Topics[0].Lag != 42 {
		t.Errorf("%+v", got)
	}
}

package process

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// tableServer serves the table pages of a process over a socket.
func tableServer(t *testing.T, p *standalone) administration.TableFlags {
	mux := http.NewServeMux()
	for _, page := range p.orderPages() {
		mux.Handle(page.pattern, page.handler)
	}
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return administration.TableFlags{URL: srv.URL, Flags: administration.Flags{Output: "table", Timeout: 30 * time.Second}}
}

// TestTablesOfAProcessThatIsAloneAreAdministered by the commands of a cluster.
func TestTablesOfAProcessThatIsAloneAreAdministered(t *testing.T) {
	p := open(t)
	f := tableServer(t, p)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	days := func(n int) *setting.Span { d := setting.Span(n) * setting.Span(24*time.Hour); return &d }
	must((&administration.TableCreate{TableFlags: f, TableSettings: administration.TableSettings{Retention: days(30)}, Table: "team-a"}).Run())
	refused((&administration.TableCreate{TableFlags: f, Table: "team-a"}).Run(), "exists")
	refused((&administration.TableCreate{TableFlags: f, Table: "a/b"}).Run(), "name")
	refused((&administration.TableCreate{TableFlags: f, Table: "."}).Run(), "cannot be named")
	refused((&administration.TableShow{TableFlags: f, Table: ".."}).Run(), "no table has the name")
	three := 3
	refused((&administration.TableCreate{TableFlags: f, TableSettings: administration.TableSettings{Replicas: &three}, Table: "b"}).Run(), "one copy")
	if code, text := p.do(t, http.MethodPost, "/write?db=team-a", "m,i=a v=1"); code != http.StatusNoContent {
		t.Fatalf("%d %s", code, text)
	}
	must((&administration.TableSet{TableFlags: f, TableSettings: administration.TableSettings{Retention: days(60)}, Table: "team-a", DryRun: true}).Run())
	if m, _ := p.tables.Get("team-a"); m.Config.Retention != time.Duration(*days(30)) {
		t.Errorf("after a dry run the retention is %v", m.Config.Retention)
	}
	must((&administration.TableSet{TableFlags: f, TableSettings: administration.TableSettings{Retention: days(60)}, Table: "team-a"}).Run())
	if m, _ := p.tables.Get("team-a"); m.Config.Retention != time.Duration(*days(60)) {
		t.Errorf("the retention is %v", m.Config.Retention)
	}
	refused((&administration.TableSet{TableFlags: f, TableSettings: administration.TableSettings{Retention: days(1)}, Table: "nope"}).Run(), "no table")
	must((&administration.TableList{TableFlags: f}).Run())
	must((&administration.PartitionShow{TableFlags: f, PartitionArg: administration.PartitionArg{Table: "team-a", ID: 1}}).Run())
	refused((&administration.PartitionShow{TableFlags: f, PartitionArg: administration.PartitionArg{Table: "team-a", ID: 99}}).Run(), "no p99")
	refused((&administration.PartitionSplit{TableFlags: f, PartitionArg: administration.PartitionArg{Table: "team-a", ID: 1}, At: "time-middle"}).Run(), "alone")
	refused((&administration.PartitionMove{TableFlags: f, PartitionArg: administration.PartitionArg{Table: "team-a", ID: 1}, To: "n2", Reason: "test"}).Run(), "alone")
	must((&administration.TableShow{TableFlags: f, Table: "team-a"}).Run())
	refused((&administration.TableDrop{TableFlags: f, Table: "team-a"}).Run(), "--confirm=team-a")
	must((&administration.TableDrop{TableFlags: f, Table: "team-a", Confirm: "team-a"}).Run())
	if _, text := p.do(t, http.MethodGet, "/t/team-a/api/v1/query?query=m_v", ""); strings.Contains(text, `"i":"a"`) {
		t.Errorf("a dropped table answers %s", text)
	}
	if held := p.server.Held(); len(held) > 0 {
		t.Errorf("of the dropped table %v is here", held)
	}
	if code, text := p.do(t, http.MethodPost, "/write?db=team-a", "m,i=b v=1"); code != http.StatusNoContent {
		t.Fatalf("a write to the name again: %d %s", code, text)
	}
}

// TestAnOrderIsNotCarriedOutAsIfHalfOfItWereNotThere: a dry run that was spelled 1, or dryrun, dropped the table.
func TestAnOrderIsNotCarriedOutAsIfHalfOfItWereNotThere(t *testing.T) {
	p := open(t)
	f := tableServer(t, p)
	if err := (&administration.TableCreate{TableFlags: f, Table: "team-a"}).Run(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, target, body string
		want                 int
	}{
		{"DELETE", "team-a?confirm=team-a&dry_run=1", "", 200},
		{"DELETE", "team-a?confirm=team-a&dry_run=yes", "", 400},
		{"DELETE", "team-a?confirm=team-a&dryrun=true", "", 400},
		{"PATCH", "team-a?dry_run=T", `{"retention": "1d"}`, 200},
		{"PATCH", "team-a?dry-run=true", `{"retention": "1d"}`, 400},
		{"PATCH", "team-a", `{"retention": "1d"} {"retention": "2d"}`, 400},
		{"PATCH", "team-a?reason=" + strings.Repeat("x", 1000), `{"retention": "1d"}`, 400},
		{"PUT", "team-b?dry_run=true", "", 400},
	} {
		rq, err := http.NewRequestWithContext(t.Context(), c.method, f.URL+administration.TablesPath+"/"+c.target, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(rq)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s %.60s %s: %d %s, want %d", c.method, c.target, c.body, resp.StatusCode, text, c.want)
		}
		if m, there := p.tables.Get("team-a"); !there || m.Config.Retention != 0 {
			t.Fatalf("%s %.60s %s: the table is there: %t, with %+v", c.method, c.target, c.body, there, m)
		}
		if _, there := p.tables.Get("team-b"); there {
			t.Fatalf("%s %s made the table", c.method, c.target)
		}
	}
}

// TestATableThatIsMadeAnewOutlivesTheEndOfItsDrop: the minute's round found a drop under way, and began to end it when the order had ended it
// and a sender had made the table again: its new rows were deleted.
func TestATableThatIsMadeAnewOutlivesTheEndOfItsDrop(t *testing.T) {
	p := open(t)
	write := func() {
		t.Helper()
		if code, text := p.do(t, http.MethodPost, "/write?db=team-a", "m,i=a v=1"); code != http.StatusNoContent {
			t.Fatalf("%d %s", code, text)
		}
	}
	write()
	if err := p.tables.BeginDrop(t.Context(), "team-a"); err != nil || !p.tables.Dropping("team-a") { // here the round looks
		t.Fatalf("the drop did not begin: %v", err)
	}
	if err := p.dropTable(t.Context(), "team-a"); err != nil {
		t.Fatal(err)
	}
	write()
	if err := p.finishDrop(t.Context(), "team-a"); err != nil {
		t.Fatal(err)
	}
	if _, text := p.do(t, http.MethodGet, "/t/team-a/api/v1/query?query=m_v", ""); !strings.Contains(text, `"i":"a"`) {
		t.Errorf("the new table answers %s", text)
	}
	// A drop that has not ended is ended.
	if err := p.tables.BeginDrop(t.Context(), "team-a"); err != nil {
		t.Fatal(err)
	}
	p.finishDrops(t.Context())
	if _, there := p.tables.Get("team-a"); there || len(p.server.Held()) > 0 {
		t.Errorf("after the round the table is there: %t, with %v", there, p.server.Held())
	}
}

// TestATableIsSetAsAdvisedByURL: the command knew clusters alone.
func TestATableIsSetAsAdvisedByURL(t *testing.T) {
	p := open(t)
	f := tableServer(t, p)
	width := setting.Span(10 * time.Second)
	if err := (&administration.TableCreate{TableFlags: f, TableSettings: administration.TableSettings{PartitionWidth: &width}, Table: "load"}).Run(); err != nil {
		t.Fatal(err)
	}
	is := func(want time.Duration) {
		t.Helper()
		if m, _ := p.tables.Get("load"); m.Config.PartitionWidth != want {
			t.Errorf("the width is %v, want %v", m.Config.PartitionWidth, want)
		}
	}
	advise := func(output string, apply, dry bool) error {
		c := &administration.TableAdvise{TableFlags: f, Table: "load", Rows: 1000, SplitBytes: administration.AdviseSplitBytes, Apply: apply, DryRun: dry}
		c.Output = output
		return c.Run()
	}
	for _, c := range []struct {
		output     string
		apply, dry bool
		want       time.Duration
	}{{"table", false, false, 10 * time.Second}, {"json", false, false, 10 * time.Second}, {"table", true, true, 10 * time.Second}, {"table", true, false, 24 * time.Hour}, {"table", true, false, 24 * time.Hour}} {
		if err := advise(c.output, c.apply, c.dry); err != nil {
			t.Fatal(err)
		}
		is(c.want)
	}
	if err := (&administration.TableAdvise{TableFlags: f, Table: "load", SplitBytes: administration.AdviseSplitBytes}).Run(); err == nil || !strings.Contains(err.Error(), "--rows-per-second") {
		t.Errorf("advice without a load: %v", err)
	}
	if err := (&administration.TableAdvise{TableFlags: f, Table: "nope", Rows: 1}).Run(); err == nil || !strings.Contains(err.Error(), "no table") {
		t.Errorf("advice for a table that there is not: %v", err)
	}
}

// TestWhatLosesRowsIsSaidByURLToo: a process that is alone has neither lease rows nor other copies, and a repair names the option it needs instead of a URL.
func TestWhatLosesRowsIsSaidByURLToo(t *testing.T) {
	f := tableServer(t, open(t))
	for want, err := range map[string]error{
		"nothing to restore":    (&administration.PartitionRestore{TableFlags: f, PartitionArg: administration.PartitionArg{Table: "default", ID: 1}, Reason: "x"}).Run(),
		"nothing to force-join": (&administration.PartitionForceJoin{TableFlags: f, PartitionArg: administration.PartitionArg{Table: "default", ID: 1}, Server: "s1", Reason: "x"}).Run(),
		"has no --url":          (&administration.TableRepair{Table: "default", Reason: "x"}).Run(),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestWhatAdministratorsDidIsReadByURL: a process that is alone wrote it down, and no command could read it.
func TestWhatAdministratorsDidIsReadByURL(t *testing.T) {
	p := open(t)
	f := tableServer(t, p)
	f.By = "ann@desk"
	if err := (&administration.TableCreate{TableFlags: f, Table: "team-b"}).Run(); err != nil {
		t.Fatal(err)
	}
	for form, want := range map[string]string{"": `"create table team-b, width 1d, retention for ever, 1 replicas"`, "&output=table": `ann@desk  create table team-b`} {
		resp, err := http.Get(f.URL + administration.AuditPath + "?limit=5&match=team-b" + form)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), want) {
			t.Errorf("%d %v: %s, want %s", resp.StatusCode, err, text, want)
		}
	}
	for _, c := range []*administration.Audit{{Limit: 10}, {Limit: 10, Match: "nothing of the kind"}} {
		for _, output := range []string{"table", "json"} {
			c.TableFlags = f
			c.Output = output
			if err := c.Run(); err != nil {
				t.Errorf("%s: %v", output, err)
			}
		}
	}
}

// TestTheDoctorAtTheWrongPortSaysWhichItNeeds: it said 404.
func TestTheDoctorAtTheWrongPortSaysWhichItNeeds(t *testing.T) {
	f := tableServer(t, open(t))
	err := (&administration.Doctor{StatusFlags: administration.StatusFlags{URL: f.URL, Flags: f.Flags}}).Run()
	if err == nil || !strings.Contains(err.Error(), "8428") || !strings.Contains(err.Error(), "--servers") {
		t.Errorf("%v", err)
	}
}

// TestADropThatWasInterruptedIsFinished: writers got 503 from then on.
func TestADropThatWasInterruptedIsFinished(t *testing.T) {
	dir := t.TempDir()
	p := openIn(t, dir)
	if code, text := p.do(t, http.MethodPost, "/write?db=gone", "m,i=a v=1"); code != http.StatusNoContent {
		t.Fatalf("%d %s", code, text)
	}
	if err := p.tables.BeginDrop(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	p.finishDrops(t.Context())
	if _, ok := p.tables.Get("gone"); ok || len(p.server.Held()) > 0 {
		t.Errorf("the table is there: %v, and of its rows %v", ok, p.server.Held())
	}
	if code, text := p.do(t, http.MethodPost, "/write?db=gone", "m,i=a v=2"); code != http.StatusNoContent {
		t.Errorf("a write afterwards: %d %s", code, text)
	}
	if err := (&administration.TableList{TableFlags: administration.TableFlags{URL: "http://127.0.0.1:1", Flags: administration.Flags{Timeout: time.Second}}}).Run(); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a process that does not run: %v", err)
	}
}

// TestATableMadeByCurlKeepsItsRetention: curl -d calls every body a form. The settings in one were ignored, so that the
// table kept its rows for ever, and a mistake in them got no answer.
func TestATableMadeByCurlKeepsItsRetention(t *testing.T) {
	p := open(t)
	f := tableServer(t, p)
	send := func(want int, method, path, body string) string {
		t.Helper()
		rq, err := http.NewRequestWithContext(t.Context(), method, f.URL+administration.TablesPath+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		rq.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := http.DefaultClient.Do(rq)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != want {
			t.Fatalf("%s %s %s: %s %s %v", method, path, body, resp.Status, text, err)
		}
		return string(text)
	}
	keeps := func(want time.Duration) {
		t.Helper()
		if m, ok := p.tables.Get("team-a"); !ok || m.Config.Retention != want {
			t.Fatalf("the table keeps its rows for %v, want %v", m.Config.Retention, want)
		}
	}
	const day = 24 * time.Hour
	send(http.StatusOK, http.MethodPut, "/team-a", `{"retention":"30d"}`)
	keeps(30 * day)
	send(http.StatusOK, http.MethodPatch, "/team-a?dry_run=true", `{"retention":"60d"}`)
	keeps(30 * day)
	send(http.StatusOK, http.MethodPatch, "/team-a?reason=x", `{"retention":"60d"}`)
	keeps(60 * day)
	send(http.StatusBadRequest, http.MethodPatch, "/team-a", `{"retention":"3q"}`)
	send(http.StatusBadRequest, http.MethodPatch, "/team-a", `retention=90d`)
	send(http.StatusBadRequest, http.MethodPatch, "/team-a?dry_run=%zz", `{"retention":"90d"}`)
	keeps(60 * day)
}

// TestAShorterRetentionAsksBeforeItDeletes: a slip of the finger, 3d for 30d, deleted the rows of weeks within a minute.
func TestAShorterRetentionAsksBeforeItDeletes(t *testing.T) {
	p := open(t)
	f := tableServer(t, p)
	write := func(age time.Duration) {
		t.Helper()
		if code, text := p.do(t, http.MethodPost, "/write?db=hosts", fmt.Sprintf("m v=1 %d", time.Now().Add(-age).UnixNano())); code != http.StatusNoContent {
			t.Fatalf("%d %s", code, text)
		}
	}
	const day = 24 * time.Hour
	set := func(days int, confirm string) error {
		keep := setting.Span(days) * setting.Span(day)
		return (&administration.TableSet{TableFlags: f, TableSettings: administration.TableSettings{Retention: &keep}, Table: "hosts", Confirm: confirm}).Run()
	}
	keeps := func(want time.Duration) {
		t.Helper()
		if m, ok := p.tables.Get("hosts"); !ok || m.Config.Retention != want {
			t.Errorf("rows are kept for %v, want %v", m.Config.Retention, want)
		}
	}
	write(0)
	write(10 * day)
	for _, confirm := range []string{"", "host"} {
		if err := set(3, confirm); err == nil || !strings.Contains(err.Error(), "of the 2 partitions of table hosts 1 are older than 3d") || !strings.Contains(err.Error(), "--confirm=hosts") {
			t.Errorf("confirmed with %q: %v", confirm, err)
		}
	}
	keeps(0)
	if err := set(30, ""); err != nil { // nothing is as old
		t.Error(err)
	}
	keeps(30 * day)
	if err := set(3, "hosts"); err != nil {
		t.Error(err)
	}
	keeps(3 * day)
}

// TestAdviceForNoLoadOfThisWorldIsRefused: it named more servers than there are atoms.
func TestAdviceForNoLoadOfThisWorldIsRefused(t *testing.T) {
	p := open(t)
	f := tableServer(t, p)
	if code, text := p.do(t, http.MethodPost, "/write?db=hosts", "m v=1"); code != http.StatusNoContent {
		t.Fatalf("%d %s", code, text)
	}
	for _, rows := range []float64{1e300, math.Inf(1), math.NaN(), -1} {
		err := (&administration.TableAdvise{TableFlags: f, Table: "hosts", SplitBytes: 1 << 30, Rows: rows}).Run()
		if err == nil || !strings.Contains(err.Error(), "--rows-per-second has to be positive, and at most 1e+12") {
			t.Errorf("%g rows a second: %v", rows, err)
		}
	}
}

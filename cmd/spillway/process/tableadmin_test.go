package process

import (
	"io"
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

// TestWhatLosesRowsIsSaidByURLToo: a process that is alone has neither lease rows nor other copies, and a repair names what it needs instead of a URL.
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

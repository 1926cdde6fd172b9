package transfer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/jsonrows"
	"github.com/spillwaydb/spillway/protocols/point"
)

// store is a server with one series, a row a minute, which refuses reads of more than some rows, and counts writes.
type store struct {
	t       *testing.T
	lo, hi  int64 // milliseconds
	rowsMax int
	hole    int64 // the row at this millisecond is NaN
	mu      struct {
		sync.Mutex
		reads    int
		refusing func(read int) bool
		got      map[string]int
		writes   int
		writing  func(write int) int // status; 0: 204
		// answering returns the status with which a write is answered after its rows were stored; 0: 204.
		answering func(write int) int
	}
}

func newStore(t *testing.T, rows int) (*store, *Server) {
	s := &store{t: t, lo: 1_790_000_000_000, rowsMax: 1 << 30}
	s.hi = s.lo + int64(rows-1)*60_000
	s.mu.got = map[string]int{}
	at := httptest.NewServer(s)
	t.Cleanup(at.Close)
	return s, &Server{URL: at.URL, Do: at.Client().Do}
}

// ServeHTTP implements http.Handler.
func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.URL.Path {
	case "/api/v1/export":
		s.export(w, r)
	case "/api/v1/write":
		s.write(w, r)
	case "/api/v2/write":
		s.writeLines(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (s *store) export(w http.ResponseWriter, r *http.Request) {
	ms := func(name string) int64 {
		v, err := strconv.ParseFloat(r.URL.Query().Get(name), 64)
		if err != nil {
			s.t.Error(err)
		}
		return int64(v * 1000)
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	s.mu.reads++
	var b []byte
	rows := 0
	start, end := ms("start"), ms("end")
	for at := s.lo; at <= s.hi; at += 60_000 {
		if at < start || at > end {
			continue
		}
		l := Line{Labels: []jsonrows.Label{{Name: point.MetricName, Value: "m"}}, Times: []point.Nanos{point.Nanos(at * nanosPerMilli)}, Values: []float64{float64(at)}}
		if at == s.hole {
			l.Values[0] = math.NaN()
		}
		b, _ = jsonrows.Append(b, &l)
		if rows++; rows > s.rowsMax || s.mu.refusing != nil && s.mu.refusing(s.mu.reads) {
			w.Write(jsonrows.AppendError(b, fault.Errorf(fault.TooLarge, "too many rows")))
			return
		}
	}
	w.Write(jsonrows.AppendEnd(b, jsonrows.End{Series: 1, Rows: int64(rows)}))
}

func (s *store) write(w http.ResponseWriter, r *http.Request) {
	if !s.begin(w) {
		return
	}
	packed, err := io.ReadAll(r.Body)
	if err != nil {
		return // the sender went away
	}
	b, err := snappy.Decode(nil, packed)
	var q prompb.WriteRequest
	if err == nil {
		err = q.Unmarshal(b)
	}
	if err != nil {
		s.t.Error(err)
	}
	for _, ts := range q.Timeseries {
		for _, x := range ts.Samples {
			s.mu.got[fmt.Sprint(ts.Labels, x.Timestamp, x.Value)]++
		}
	}
	s.end(w)
}

// writeLines accepts line protocol. A line without a time gets that of the request, which no other has.
func (s *store) writeLines(w http.ResponseWriter, r *http.Request) {
	if !s.begin(w) {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the sender went away
	}
	for line := range strings.Lines(string(body)) {
		if line = strings.TrimSpace(line); strings.Count(line, " ") < 2 {
			line += fmt.Sprintf(" of write %d", s.mu.writes)
		}
		s.mu.got[line]++
	}
	s.end(w)
}

// begin counts a write; false: it is refused.
func (s *store) begin(w http.ResponseWriter) bool {
	s.mu.writes++
	if s.mu.writing != nil {
		if status := s.mu.writing(s.mu.writes); status != 0 {
			http.Error(w, "not now", status)
			return false
		}
	}
	return true
}

// end sends the answer to a write, after its rows were kept.
func (s *store) end(w http.ResponseWriter) {
	if s.mu.answering != nil {
		if status := s.mu.answering(s.mu.writes); status != 0 {
			http.Error(w, "kept, but not acked", status)
			return
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

func export(t *testing.T, s *store, from *Server, to string) *Export {
	t.Helper()
	r, err := NewReader(context.Background(), from, "")
	if err != nil {
		t.Fatal(err)
	}
	return &Export{Reader: r, To: to, Format: FormatJSON, Lo: s.lo, Hi: s.hi, Window: 24 * time.Hour, What: "test", Losses: &Losses{}, Say: func(string) {}}
}

// rowsOf are the times in a file.
func rowsOf(t *testing.T, path string) (times []point.Nanos) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var p jsonrows.Parser
	for line := range bytes.Lines(b) {
		l, err := p.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, l.Times...)
	}
	return times
}

func wantRows(t *testing.T, s *store, path string) {
	t.Helper()
	var want []point.Nanos
	for at := s.lo; at <= s.hi; at += 60_000 {
		want = append(want, point.Nanos(at*nanosPerMilli))
	}
	if got := rowsOf(t, path); !slices.Equal(got, want) {
		t.Fatalf("%d rows, want %d", len(got), len(want))
	}
}

// TestAnExportCountsTheRowsThatItWrote: rows that the format has no form for were said to be left out, and to be exported, too. The window is read
// twice, since the server refuses all of it at once.
func TestAnExportCountsTheRowsThatItWrote(t *testing.T) {
	s, from := newStore(t, 500)
	s.rowsMax, s.hole = 300, s.lo
	to := filepath.Join(t.TempDir(), "rows.lp")
	e := export(t, s, from, to)
	e.Format = FormatLine
	rows, _, err := e.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(to); err != nil || rows != 499 || bytes.Count(b, []byte{'\n'}) != 499 {
		t.Errorf("%d rows are said to be exported, %d of 500 are in the file, of which one has no form: %v", rows, bytes.Count(b, []byte{'\n'}), err)
	}
}

// A window that is too large for the server comes in pieces, each row once.
func TestExportCutsWhatTheServerRefuses(t *testing.T) {
	s, from := newStore(t, 500)
	s.rowsMax = 200
	to := filepath.Join(t.TempDir(), "rows.jsonl")
	rows, _, err := export(t, s, from, to).Run(context.Background())
	if err != nil || rows != 500 {
		t.Fatal(rows, err)
	}
	wantRows(t, s, to)
}

// An export that was interrupted goes on where it was, and its file holds each row once.
func TestExportGoesOn(t *testing.T) {
	s, from := newStore(t, 5000)
	to := filepath.Join(t.TempDir(), "rows.jsonl")
	ctx, stop := context.WithCancel(context.Background())
	s.mu.refusing = func(read int) bool {
		if read == 4 {
			stop() // in the middle of a window
		}
		return read == 4
	}
	rows, _, err := export(t, s, from, to).Run(ctx)
	if err == nil || rows == 0 || rows == 5000 {
		t.Fatal(rows, err)
	}
	if f, err := os.OpenFile(to, os.O_APPEND|os.O_WRONLY, 0); err == nil {
		f.WriteString(`{"metric":{"__na`) // as after a crash
		f.Close()
	}
	other := export(t, s, from, to)
	other.What = "another"
	if _, _, err := other.Run(context.Background()); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "other parameters") {
		t.Error(err)
	}
	before := s.mu.reads
	if rows, _, err = export(t, s, from, to).Run(context.Background()); err != nil || rows != 5000 {
		t.Fatal(rows, err)
	}
	wantRows(t, s, to)
	if n := s.mu.reads - before; n > 5 {
		t.Errorf("%d reads: it began anew", n)
	}
	if _, err := os.Stat(to + ResumeSuffix); !os.IsNotExist(err) {
		t.Error(err)
	}
	if _, _, err := export(t, s, from, to).Run(context.Background()); !fault.Is(err, fault.Invalid) {
		t.Error("a file that is whole was written over", err)
	}
}

// An import that was interrupted goes on where everything was written, and loses nothing.
func TestImportGoesOn(t *testing.T) {
	s, to := newStore(t, 1)
	path := filepath.Join(t.TempDir(), "rows.om")
	var text strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&text, "m{i=\"%d\"} %d %d.5\n", i%100, i, 1_790_000_000+i)
	}
	text.WriteString("# EOF\n")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func() (int64, *Losses, error) {
		m := &Import{Server: to, From: path, Format: FormatOpenMetrics, Senders: 1, Note: path + ResumeSuffix, What: "test", Losses: &Losses{}, Say: func(string) {}}
		rows, err := m.Run(context.Background())
		return rows, m.Losses, err
	}
	s.mu.writing = func(write int) int {
		switch {
		case write == 2:
			return http.StatusServiceUnavailable // tried again
		case write > 5:
			return http.StatusForbidden // the end of this run
		}
		return 0
	}
	if rows, _, err := run(); !fault.Is(err, fault.Denied) || rows == 0 || rows >= 100_000 {
		t.Fatal(rows, err)
	}
	s.mu.writing, s.mu.writes = nil, 0
	rows, losses, err := run()
	if err != nil || rows != 100_000 || losses.Any() {
		t.Fatal(rows, err)
	}
	if len(s.mu.got) != 100_000 {
		t.Errorf("%d rows were written", len(s.mu.got))
	}
	if s.mu.writes > 9 {
		t.Errorf("%d writes: it began anew", s.mu.writes)
	}
}

// Lines that cannot be read are named, and the others are kept.
func TestImportKeepsGoodLines(t *testing.T) {
	for format, text := range map[string]string{
		FormatOpenMetrics: "# TYPE m gauge\nm 1 1\nm{ 2 2\n\nm 3 3\n# EOF\n",
		FormatPrometheus:  "# TYPE m gauge\nm 1 1000\nm{ 2 2\n\nm 3 3000",
		FormatJSON:        `{"metric":{"__name__":"m"},"timestamps":[1000],"values":[1]}` + "\n\n{\n" + `{"metric":{"__name__":"m"},"timestamps":[3000],"values":[3]}`,
	} {
		s, to := newStore(t, 1)
		path := filepath.Join(t.TempDir(), "rows")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		m := &Import{Server: to, From: path, Format: format, Senders: 1, Losses: &Losses{}, Say: func(string) {}}
		rows, err := m.Run(context.Background())
		var said strings.Builder
		m.Losses.Print(&said)
		if err != nil || rows != 2 || len(s.mu.got) != 2 || !strings.Contains(said.String(), "rows line 3:") || !strings.HasPrefix(said.String(), "1 lines") {
			t.Errorf("%s: %d rows, %v, %v\n%s", format, rows, err, s.mu.got, &said)
		}
	}
}

func TestLineEnd(t *testing.T) {
	f := func(line string, wantInText bool, want string) { // want: the line with a time; "": it gets none
		t.Helper()
		inText, undated := lineEnd([]byte(line))
		got := ""
		if undated > 0 {
			got = line[:undated] + " 9" + line[undated:]
		}
		if inText != wantInText || !inText && got != want {
			t.Errorf("%q: in a text: %v, %q, want %v, %q", line, inText, got, wantInText, want)
		}
	}
	f("m v=1 7\n", false, "")
	f("m v=1 7", false, "")
	f("m v=1 7\r\n", false, "")
	f("m v=1\n", false, "m v=1 9\n")
	f("m v=1\r\n", false, "m v=1 9\r\n")
	f("m v=1", false, "m v=1 9")
	f("m v=1 \n", false, "m v=1 9 \n")
	f("m v=1  ", false, "m v=1 9  ")
	f("  m  v=1  7\n", false, "")
	f("  m  v=1\n", false, "  m  v=1 9\n")
	f("m v=\"a\n", true, "")
	f("m v=\"a\nb\" 7\n", false, "")
	f("m v=\"a\nb\"\n", false, "m v=\"a\nb\" 9\n")
	f("m v=\"a \\\" b\n", true, "")
	f("m v=\"a \\\\\" 7\n", false, "")
	f("m,t=\"q v=1\n", false, "m,t=\"q v=1 9\n")
	f("m,t=a\\ b v=1,w=\"x y\",z=\"\n", true, "")
	f("m,t=a\\ b v\\ w=1\n", false, "m,t=a\\ b v\\ w=1 9\n")
	f("m\\  v=1\n", false, "m\\  v=1 9\n") // a name that ends in a space
	f("m,t=a\\   v=1\n", false, "m,t=a\\   v=1 9\n")
	f("m\\  v=1 7\n", false, "")
	f("m,p=C:\\\\ x v=\"a\" 7\n", false, "")
	f("# m v=\"a\n", false, "")
	f(" # m v=1\n", false, "")
	f("\n", false, "")
	f("m\n", false, "")
	f("m \n", false, "")
}

func TestSeconds(t *testing.T) {
	for ns, want := range map[int64]string{0: "0", 1: "0.000000001", -1: "-0.000000001", 1_500_000_000: "1.5", -2_000_000_000: "-2", 1_790_000_000_000_000_001: "1790000000.000000001", -1 << 63: "-9223372036.854775808"} {
		if got := string(appendSeconds(nil, ns)); got != want {
			t.Errorf("%d: %s, want %s", ns, got, want)
		}
	}
}

// TestAnExportNamesTimesThatItsReadersRefuse: the text of Prometheus had rows of before 1970, and no reader of it accepts them.
func TestAnExportNamesTimesThatItsReadersRefuse(t *testing.T) {
	for format, want := range map[string]string{FormatPrometheus: "m 2 5\n", FormatOpenMetrics: "m 1 -0.005\nm 2 0.005\n", FormatLine: "m value=1 -5000000\nm value=2 5000000\n"} {
		var losses Losses
		e, err := newEncoder(format, &losses)
		if err != nil {
			t.Fatal(err)
		}
		line := &Line{Labels: []jsonrows.Label{{Name: point.MetricName, Value: "m"}}, Times: []point.Nanos{-5e6, 5e6}, Values: []float64{1, 2}}
		text, err := e.append(nil, line)
		if err != nil || string(text) != want {
			t.Errorf("%s: %q, want %q: %v", format, text, want, err)
		}
		var said strings.Builder
		losses.Print(&said)
		if named := strings.Contains(said.String(), "1 rows have times before 1970"); named != (format == FormatPrometheus) {
			t.Errorf("%s: %s", format, said.String())
		}
	}
}

// TestASecondExportOfBlocksIsRefused: it wrote blocks of the same rows beside those of the first.
func TestASecondExportOfBlocksIsRefused(t *testing.T) {
	s, from := newStore(t, 300)
	to := filepath.Join(t.TempDir(), "blocks")
	blocks := func() *Export {
		e := export(t, s, from, to)
		e.Format, e.Window = FormatBlocks, BlockWindow
		return e
	}
	count := func() int {
		found, err := filepath.Glob(filepath.Join(to, "*", "meta.json"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	// A run that is interrupted goes on, beside the blocks that it wrote.
	ctx, stop := context.WithCancel(context.Background())
	s.mu.refusing = func(int) bool {
		if count() > 0 {
			stop()
		}
		return ctx.Err() != nil
	}
	if _, _, err := blocks().Run(ctx); err == nil || count() == 0 {
		t.Fatalf("%d blocks, %v", count(), err)
	}
	s.mu.refusing = nil
	if rows, _, err := blocks().Run(context.Background()); err != nil || rows != 300 {
		t.Fatal(rows, err)
	}
	n := count()
	_, _, err := blocks().Run(context.Background())
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), to) || !strings.Contains(err.Error(), "has blocks already") {
		t.Error(err)
	}
	if got := count(); got != n {
		t.Errorf("%d blocks, %d before", got, n)
	}
}

// victoria answers as VictoriaMetrics 1.79 does: 400 without match[], and lines of JSON without a line that ends them.
func victoria(t *testing.T, broken bool) *Server {
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch q := r.URL.Query(); {
		case r.URL.Path != "/api/v1/export":
			http.NotFound(w, r)
		case q.Get("match[]") == "":
			http.Error(w, "missing `match[]` arg", http.StatusBadRequest)
		case q.Get("start") == "1.000":
			w.Header().Set("Content-Type", "application/stream+json; charset=utf-8")
		default:
			w.Header().Set("Content-Type", "application/stream+json; charset=utf-8")
			fmt.Fprintf(w, `{"metric":{"__name__":"up","job":%q},"values":[1,0.5],"timestamps":[1790000000000,1790000060000]}`+"\n", q.Get("match[]"))
			if broken {
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
		}
	}))
	t.Cleanup(at.Close)
	return &Server{URL: at.URL, Do: at.Client().Do}
}

// TestTheRowsOfAVictoriaMetricsCanBeMovedIn: the first question to it, which has no match[], was answered 400, and that was the end.
func TestTheRowsOfAVictoriaMetricsCanBeMovedIn(t *testing.T) {
	for match, job := range map[string]string{"": `{__name__!=""}`, `up{job="api"}`: `up{job="api"}`} {
		r, err := NewReader(t.Context(), victoria(t, false), match)
		if err != nil {
			t.Fatalf("match %q: %v", match, err)
		}
		rows := 0
		err = r.Read(t.Context(), 1_790_000_000_000, 1_790_000_100_000, func(l *Line) error {
			if l.Labels[1].Value != job || l.Times[1] != 1_790_000_060_000*nanosPerMilli {
				t.Errorf("match %q: %v at %v", match, l.Labels, l.Times)
			}
			rows += l.Rows()
			return nil
		})
		if err != nil || rows != 2 {
			t.Errorf("match %q: %d rows, %v", match, rows, err)
		}
		if _, _, _, known := r.Range(t.Context(), time.Now()); known || r.Exact() {
			t.Error("it says neither how old its rows are nor their nanoseconds")
		}
	}
}

// TestAnAnswerOfVictoriaMetricsThatBreaksOffIsNotWhole: the rows behind the break would be lost in silence.
func TestAnAnswerOfVictoriaMetricsThatBreaksOffIsNotWhole(t *testing.T) {
	r, err := NewReader(t.Context(), victoria(t, true), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Read(t.Context(), 1_790_000_000_000, 1_790_000_100_000, func(*Line) error { return nil }); !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
}

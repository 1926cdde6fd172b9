package transfer

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// writeText writes a file to import.
func writeText(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// fileImport is an import of a file.
func fileImport(to *Server, path, format string) *Import {
	return &Import{Server: to, From: path, Format: format, Precision: "ms", Senders: 2, Note: path + ResumeSuffix, What: "test",
		Losses: &Losses{}, Say: func(string) {}}
}

// refuseFrom makes the store refuse the write with a number, and all behind it, for good.
func refuseFrom(first int) func(int) int {
	return func(write int) int {
		if write >= first {
			return http.StatusForbidden
		}
		return 0
	}
}

// TestRowsWithoutATimeAreNotDoubledWhenAnImportGoesOn: rows that were sent and not noted had the time of the first run, and came once more with the time of
// the next. Lines of line protocol had another time with each attempt.
func TestRowsWithoutATimeAreNotDoubledWhenAnImportGoesOn(t *testing.T) {
	const rows = 35_000 // four batches
	line := map[string]string{FormatOpenMetrics: "m{i=\"%d\"} 1\n", FormatPrometheus: "m{i=\"%d\"} 1\n", FormatLine: "m,i=%d value=1\n"}
	for format, one := range line {
		var text strings.Builder
		for i := range rows {
			fmt.Fprintf(&text, one, i)
		}
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, killed: %v", format, killed), func(t *testing.T) {
				s, to := newStore(t, 1)
				path := writeText(t, "rows", text.String())
				var atFirst []byte // the note when the first rows come
				s.mu.writing = func(int) int {
					if atFirst == nil {
						atFirst, _ = os.ReadFile(path + ResumeSuffix)
					}
					return 0
				}
				s.mu.answering = refuseFrom(2)
				if rows, err := fileImport(to, path, format).Run(context.Background()); !fault.Is(err, fault.Denied) {
					t.Fatal(rows, err)
				}
				if killed { // before the first second was over
					os.Remove(path + ResumeSuffix)
					if atFirst != nil {
						if err := os.WriteFile(path+ResumeSuffix, atFirst, 0o600); err != nil {
							t.Fatal(err)
						}
					}
				}
				s.mu.answering = func(write int) int {
					if write%3 == 0 {
						return http.StatusServiceUnavailable // it is sent again
					}
					return 0
				}
				if n, err := fileImport(to, path, format).Run(context.Background()); err != nil || n != rows {
					t.Fatal(n, err)
				}
				if len(s.mu.got) != rows {
					t.Errorf("%d rows of a file with %d", len(s.mu.got), rows)
				}
			})
		}
	}
}

// jsonRows are lines of JSON.
func jsonRows(metric string, rows int) string {
	var text strings.Builder
	for i := range rows {
		fmt.Fprintf(&text, `{"metric":{"__name__":%q},"timestamps":[%d],"values":[1]}`+"\n", metric, 1_790_000_000_000+i)
	}
	return text.String()
}

// TestNoRowOfAReplacedFileIsPassedOver: an import was interrupted, and its file replaced by another dump of the same name. The first rows of that were
// skipped.
func TestNoRowOfAReplacedFileIsPassedOver(t *testing.T) {
	const rows = 50_000
	s, to := newStore(t, 1)
	path := writeText(t, "rows.jsonl", jsonRows("old", rows))
	s.mu.writing = refuseFrom(3)
	if n, err := fileImport(to, path, FormatJSON).Run(context.Background()); !fault.Is(err, fault.Denied) || n == 0 {
		t.Fatal(n, err)
	}
	s.mu.writing = nil
	if err := os.WriteFile(path, []byte(jsonRows("new", rows)), 0o600); err != nil {
		t.Fatal(err)
	}
	clear(s.mu.got)
	n, err := fileImport(to, path, FormatJSON).Run(context.Background())
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "not the file of the unfinished run") {
		t.Errorf("%d rows were imported, and others were passed over: %v", n, err)
	}
	if err := os.Remove(path + ResumeSuffix); err != nil {
		t.Fatal(err)
	}
	if n, err := fileImport(to, path, FormatJSON).Run(context.Background()); err != nil || n != rows || len(s.mu.got) != rows {
		t.Errorf("%d rows, %d at the server: %v", n, len(s.mu.got), err)
	}
}

// TestAnImportGoesOnBehindALineThatIsTooLong: it was said that the file is shorter now, and there was no way on but to begin anew.
func TestAnImportGoesOnBehindALineThatIsTooLong(t *testing.T) {
	s, to := newStore(t, 1)
	var text strings.Builder
	fmt.Fprintf(&text, "m,text=%s value=1 1\n", strings.Repeat("x", textLineMax))
	for i := range 50_000 {
		fmt.Fprintf(&text, "m,i=%d value=1 1790000000000\n", i)
	}
	path := writeText(t, "rows.lp", text.String())
	s.mu.writing = refuseFrom(4)
	if n, err := fileImport(to, path, FormatLine).Run(context.Background()); !fault.Is(err, fault.Denied) || n == 0 {
		t.Fatal(n, err)
	}
	s.mu.writing = nil
	m := fileImport(to, path, FormatLine)
	if n, err := m.Run(context.Background()); err != nil || n != 50_000 || len(s.mu.got) != 50_000 || !m.Losses.Any() {
		t.Errorf("%d rows, %d at the server, a loss is said: %v: %v", n, len(s.mu.got), m.Losses.Any(), err)
	}
}

// TestARunThatWroteNothingKeepsNoOtherFromBeginning: after a mistake in the table or the address the right command was refused, because of the note
// of a run that had come nowhere.
func TestARunThatWroteNothingKeepsNoOtherFromBeginning(t *testing.T) {
	s, to := newStore(t, 1)
	path := writeText(t, "rows.jsonl", jsonRows("m", 10))
	s.mu.writing = refuseFrom(1)
	wrong := fileImport(to, path, FormatJSON)
	wrong.What = "to another table"
	if _, err := wrong.Run(context.Background()); !fault.Is(err, fault.Denied) {
		t.Fatal(err)
	}
	if _, err := os.Stat(path + ResumeSuffix); !os.IsNotExist(err) {
		t.Errorf("there is a note of nothing: %v", err)
	}
	s.mu.writing = nil
	killed := &resume{What: "to another table", Now: 1}
	if err := killed.save(path + ResumeSuffix); err != nil {
		t.Fatal(err)
	}
	if n, err := fileImport(to, path, FormatJSON).Run(context.Background()); err != nil || n != 10 {
		t.Errorf("%d rows: %v", n, err)
	}
}

// TestAnImportThatCannotBeNotedSaysSoAtOnce: it wrote rows for a second, then ended.
func TestAnImportThatCannotBeNotedSaysSoAtOnce(t *testing.T) {
	s, to := newStore(t, 1)
	m := fileImport(to, writeText(t, "rows.jsonl", jsonRows("m", 10)), FormatJSON)
	m.Note = filepath.Join(t.TempDir(), "not there", "note")
	if _, err := m.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "--resume") || len(s.mu.got) > 0 {
		t.Errorf("%d rows were written: %v", len(s.mu.got), err)
	}
}

// TestAnImportThatWaitsSaysWhatItWaitsFor: the server was killed, and came back with a full disk. For minutes the last word was that it does not
// answer, once by each sender.
func TestAnImportThatWaitsSaysWhatItWaitsFor(t *testing.T) {
	s, to := newStore(t, 1)
	s.mu.writing = func(write int) int {
		switch write {
		case 2, 3, 4:
			return http.StatusBadGateway
		case 5, 6:
			return http.StatusServiceUnavailable
		}
		return 0
	}
	m := fileImport(to, writeText(t, "rows.jsonl", jsonRows("m", 20_000)), FormatJSON)
	m.Senders = 1
	var said []string
	m.Say = func(text string) { said = append(said, text) }
	if n, err := m.Run(context.Background()); err != nil || n != 20_000 {
		t.Fatal(n, err)
	}
	if len(said) != 2 || !strings.Contains(said[0], "502") || !strings.Contains(said[1], "503") {
		t.Errorf("%q, want both reasons, each once", said)
	}
}

// serverImport is an import of another server, by windows of 20 days.
func serverImport(t *testing.T, s *store, from, to *Server, note string) *Import {
	t.Helper()
	e := export(t, s, from, "")
	e.Window = 20 * 24 * time.Hour
	return &Import{Server: to, Source: e, Senders: 1, Note: note, What: "test", Losses: e.Losses, Say: func(string) {}}
}

// TestAnImportFromAServerCountsEachRowOnce: those of a window that was begun anew, in pieces or by the next run, counted twice.
func TestAnImportFromAServerCountsEachRowOnce(t *testing.T) {
	const rows = 80_000 // three windows
	s, from := newStore(t, rows)
	to, at := newStore(t, 1)
	s.rowsMax = 25_000
	note := filepath.Join(t.TempDir(), "note")
	to.mu.writing = refuseFrom(5) // in the second window
	n, err := serverImport(t, s, from, at, note).Run(context.Background())
	if !fault.Is(err, fault.Denied) || n == 0 || n > rows/2 {
		t.Fatal(n, err)
	}
	to.mu.writing = nil
	if n, err := serverImport(t, s, from, at, note).Run(context.Background()); err != nil || n != rows || len(to.mu.got) != rows {
		t.Errorf("%d rows are said to be imported, %d of %d are there: %v", n, len(to.mu.got), rows, err)
	}
}

// TestAnImportFromAServerThatIsInterruptedTwiceGoesOn: a run that ended in its first window forgot how far the run before had come.
func TestAnImportFromAServerThatIsInterruptedTwiceGoesOn(t *testing.T) {
	const rows = 80_000
	s, from := newStore(t, rows)
	to, at := newStore(t, 1)
	note := filepath.Join(t.TempDir(), "note")
	for i, writes := range []int{5, 2} { // the second run has acks of the first rows of its window
		to.mu.writes, to.mu.writing = 0, refuseFrom(writes)
		if n, err := serverImport(t, s, from, at, note).Run(context.Background()); !fault.Is(err, fault.Denied) || n == 0 {
			t.Fatal(i, n, err)
		}
	}
	to.mu.writing = nil
	clear(to.mu.got)
	n, err := serverImport(t, s, from, at, note).Run(context.Background())
	if err != nil || n != rows || len(to.mu.got) == rows {
		t.Errorf("%d rows, %d of them in the last run: %v", n, len(to.mu.got), err)
	}
}

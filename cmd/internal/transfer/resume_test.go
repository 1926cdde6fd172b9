package transfer

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestABlockThatIsHalfImportedIsNotSkippedByTheThirdRun: the second run began with a block that stands before it, of rows that came late or of blocks that
// Prometheus put together meanwhile, and noted the half one as whole. It was interrupted too, and the next run skipped the other half.
func TestABlockThatIsHalfImportedIsNotSkippedByTheThirdRun(t *testing.T) {
	dir := t.TempDir()
	writeProm(t, dir)
	all, err := findBlocks(dir)
	if err != nil || len(all) < 2 {
		t.Fatal(len(all), err)
	}
	want := promRows(t, copyDir(t, dir))
	for _, half := range all[1:] {
		begun := half.meta.ULID.String()
		note := &resume{Done: []string{}}
		note.pass(&batch{within: begun}) // those before it were not there yet, and none of its series is written
		got := &imported{rows: map[string]bool{}}
		for _, most := range []int{1, math.MaxInt} { // batches until the run is interrupted
			src, err := newPrometheusSource(dir, note, TimeMin, TimeMax, &got.losses, func(string) {})
			if err != nil {
				t.Fatal(err)
			}
			for range most {
				b, err := src.next(t.Context())
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				got.add(t, b)
				note.pass(b)
			}
			src.close()
		}
		if m := missing(want, got.rows); len(m) > 0 {
			t.Errorf("block %s: %d rows are missing, such as %s; noted as whole: %v", begun, len(m), m[0], note.Done)
		}
	}
}

// TestRowsOf1969AreImportedAfterAnInterruptionToo: the note of a run that was killed at once names no place yet, and its 0 was understood as 1970.
func TestRowsOf1969AreImportedAfterAnInterruptionToo(t *testing.T) {
	const rows = 1000
	s, from := newStore(t, rows)
	s.lo, s.hi = -rows*60_000, -60_000
	to, at := newStore(t, 1)
	path := filepath.Join(t.TempDir(), "note")
	killed := &resume{What: "test", Now: 1, Done: []string{}}
	if err := killed.save(path); err != nil {
		t.Fatal(err)
	}
	if n, err := serverImport(t, s, from, at, path).Run(context.Background()); err != nil || n != rows || len(to.mu.got) != rows {
		t.Errorf("%d rows are said to be imported, %d of %d are there: %v", n, len(to.mu.got), rows, err)
	}
}

// TestRowsOfARequestThatWasRefusedInPartHaveOneTime: the server keeps the good rows of a request that it refuses with 400. The note of a run that came no
// further was removed, and the next run gave them another time.
func TestRowsOfARequestThatWasRefusedInPartHaveOneTime(t *testing.T) {
	const rows = 10
	s, to := newStore(t, 1)
	var text strings.Builder
	for i := range rows {
		fmt.Fprintf(&text, "m,i=%d value=1\n", i)
	}
	path := writeText(t, "rows.lp", text.String())
	s.mu.answering = func(int) int { return http.StatusBadRequest }
	m := fileImport(to, path, FormatLine)
	w := &writer{server: to, losses: m.Losses, say: m.Say}
	if err := w.write(t.Context(), &batch{raw: []byte(text.String()), precision: "ms"}); err != nil || !w.unsure.Load() {
		t.Errorf("the server kept rows, and the run believes that it did not: %v", err)
	}
}

// TestASecondOutageIsSaidToo: it had the words of the first, an hour before, and for minutes nothing was said.
func TestASecondOutageIsSaidToo(t *testing.T) {
	s, to := newStore(t, 1)
	s.mu.writing = func(write int) int {
		if write == 2 || write == 4 {
			return http.StatusBadGateway
		}
		return 0
	}
	m := fileImport(to, writeText(t, "rows.jsonl", jsonRows("m", 30_000)), FormatJSON)
	m.Senders = 1
	said := 0
	m.Say = func(string) { said++ }
	if n, err := m.Run(t.Context()); err != nil || n != 30_000 {
		t.Fatal(n, err)
	}
	if said != 2 {
		t.Errorf("%d of two outages were said", said)
	}
}

// TestATryWhileTheServerIsAwayKeepsTheTimeOfTheFirstRun: the run before was killed behind its first request. A second one found no server, and removed the
// note, because nothing was written by it: the third gave the rows another time.
func TestATryWhileTheServerIsAwayKeepsTheTimeOfTheFirstRun(t *testing.T) {
	path := writeText(t, "rows.lp", "m value=1\n")
	killed := &resume{What: "test", Now: 1_790_000_000_000_000_000, Done: []string{}}
	if err := killed.save(path + ResumeSuffix); err != nil {
		t.Fatal(err)
	}
	_, to := newStore(t, 1)
	away := *to
	away.URL = "http://127.0.0.1:1"
	if n, err := fileImport(&away, path, FormatLine).Run(t.Context()); err == nil || n != 0 {
		t.Fatal(n, err)
	}
	if note, err := loadResume(path+ResumeSuffix, "test"); err != nil || note == nil || note.Now != killed.Now {
		t.Errorf("the time of the first run is forgotten: %+v: %v", note, err)
	}
}

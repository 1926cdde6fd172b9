package backups

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/storage/backup"
)

// TestAListWithABackupThatCannotBeReadSaysSoToScripts: it ended with 0, as if all could be restored.
func TestAListWithABackupThatCannotBeReadSaysSoToScripts(t *testing.T) {
	at := backup.Dir{FS: vfs.NewMem(), Path: "backups"}
	if err := at.FS.MkdirAll("backups", 0o755); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := listBackups(t.Context(), &out, at); err != nil {
		t.Fatal(err)
	}
	if err := at.Put(t.Context(), "20261122T070552.335Z.backup", 1, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if err := listBackups(t.Context(), &out, at); !errors.Is(err, terminal.Degraded) || !strings.Contains(out.String(), "20261122T070552.335Z") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// screen is what a person sees.
type screen struct {
	sync.Mutex
	text strings.Builder
}

func (s *screen) Write(b []byte) (int, error) {
	s.Lock()
	defer s.Unlock()
	return s.text.Write(b)
}

// after is what there is to see after a while.
func (s *screen) after(d time.Duration) string {
	<-time.After(d)
	synctest.Wait()
	s.Lock()
	defer s.Unlock()
	return s.text.String()
}

// TestAnOrderThatHangsIsSaid: to a process that was stopped with SIGSTOP it hung without a word, for ever.
func TestAnOrderThatHangsIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s screen
		heard, stop := awaitNews(&s, "http://s1:8429")
		s.after(newsWithin - time.Second)
		heard()
		if got := s.after(newsWithin - time.Second); got != "" {
			t.Errorf("there were news: %s", got)
		}
		said := s.after(newsWithin + 2*time.Second)
		if !strings.Contains(said, "no news of http://s1:8429 for 1m30s") || !strings.Contains(said, "for 3m0s") {
			t.Errorf("%q", said)
		}
		stop()
		if got := s.after(time.Hour); got != said {
			t.Errorf("the order has ended: %s", got[len(said):])
		}
	})
}

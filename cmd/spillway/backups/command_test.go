package backups

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/protocols/fault"
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

// TestAPlaceWithoutANameIsNotTheWorkingDirectory: `--to "$DEST"` of a script that had not set DEST wrote the backup there.
func TestAPlaceWithoutANameIsNotTheWorkingDirectory(t *testing.T) {
	if _, err := (&Backup{}).order(); !fault.Is(err, fault.Invalid) {
		t.Errorf("a backup to nowhere: %v", err)
	}
	for _, r := range []Restore{{List: true}, {Verify: true}, {URL: "http://127.0.0.1:1"}} {
		if err := r.Run(); !fault.Is(err, fault.Invalid) {
			t.Errorf("a restore from nowhere, %+v: %v", r, err)
		}
	}
}

// TestAnOrderThatItsSenderEndsDoesNotBlameTheProcess: at ctrl-C it said that the process went away.
func TestAnOrderThatItsSenderEndsDoesNotBlameTheProcess(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	process := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the rest of it would hide that the sender goes away
		_ = http.NewResponseController(w).Flush()
		interrupt()
		<-r.Context().Done()
	}))
	defer process.Close()
	_, err := sendOrder(ctx, client.Flags{}, process.URL, Path, &Order{}, terminal.NewBar(os.Stderr, "backup"))
	if !fault.Is(err, fault.Canceled) || strings.Contains(err.Error(), "went away") {
		t.Errorf("the command says: %v", err)
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
		received, stop := awaitNews(&s, "http://s1:8429")
		s.after(newsWithin - time.Second)
		received()
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

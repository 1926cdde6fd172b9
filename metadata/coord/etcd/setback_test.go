package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestAStoreThatIsSetBackEndsItsWatchers: etcd keeps a watch waiting in silence for a revision that it gives out a second time, so a process went on for hours by rows that
// were restored to others, and compared revisions that meant other rows.
func TestAStoreThatIsSetBackEndsItsWatchers(t *testing.T) {
	p := newProcess(t)
	s := open(t, Settings{Endpoints: []string{p.url}})
	put := func(value string) {
		t.Helper()
		if _, ok, err := s.Commit(t.Context(), nil, []coord.Write{{Key: "a", Value: []byte(value)}}); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	put("1")
	p.kill()
	backup := filepath.Join(t.TempDir(), "backup")
	if err := os.CopyFS(backup, os.DirFS(p.dir)); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	for range 10 {
		put("2")
	}
	_, rev, err := s.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	watched, probed := make(chan error, 1), make(chan error, 1)
	go func() { watched <- s.Watch(t.Context(), "", rev, func([]coord.Event) error { return nil }) }()
	go func() { probed <- coord.Probe(t.Context(), s) }()
	p.kill()
	if err := os.RemoveAll(p.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(p.dir, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	for what, ended := range map[string]chan error{"the watch": watched, "the probe": probed} {
		select {
		case err := <-ended:
			if !errors.Is(err, coord.ErrSetBack) || !fault.Is(err, fault.Unavailable) {
				t.Errorf("%s ended with %v", what, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s goes on", what)
		}
	}
	if _, _, err := s.Get(t.Context(), "a"); !errors.Is(err, coord.ErrSetBack) {
		t.Errorf("a read of a store that was set back: %v", err)
	}
	if _, _, err := s.Commit(t.Context(), nil, []coord.Write{{Key: "a", Value: []byte("3")}}); !errors.Is(err, coord.ErrSetBack) {
		t.Errorf("a write to a store that was set back: %v", err)
	}
	if row, _, err := open(t, Settings{Endpoints: []string{p.url}}).Get(t.Context(), "a"); err != nil || string(row.Value) != "1" {
		t.Errorf("a process that starts anew reads %q, %v", row.Value, err)
	}
}

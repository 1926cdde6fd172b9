package server_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

// TestALateTryDoesNotBringBackWhatWasReplacedOrDeleted: the first try of an insert hangs in the server until its gateway has sent it
// again, and a later value, or a deletion, was acked after that. Before the fix, its stamp was raised above both.
func TestALateTryDoesNotBringBackWhatWasReplacedOrDeleted(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	insert := func(stamp point.Stamp, v float64) error {
		return st.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: stamp, IDs: []point.SeriesID{0}, Times: []point.Nanos{1}, Values: []float64{v}})
	}
	read := func() string {
		got, err := tryRead(p.server, &peer.Select{Table: "t", Lo: 0, Hi: 10})
		must(t, err)
		return got
	}
	must(t, insert(1024|5, 1)) // the second try
	must(t, insert(2048|6, 2))
	want := read()
	late := insert(1024|5, 1)
	if clock, anew := peer.NeedsStamp(late); !anew || clock != 0 {
		t.Errorf("the late try: %v", late)
	}
	if got := read(); got != want {
		t.Errorf("the value that was replaced is read again: %q, want %q", got, want)
	}
	must(t, p.server.DeleteSeries(t.Context(), &peer.Select{Table: "t", Lo: 0, Hi: 10, Matchers: []peer.Matcher{{Name: "__name__", Type: 2, Value: ".+"}}}))
	for range 2 {
		if err := insert(2048|6, 2); err == nil {
			t.Error("a late try was taken after a deletion")
		}
	}
	if got := read(); strings.Contains(got, ":") {
		t.Errorf("deleted rows are read again: %q", got)
	}
	must(t, insert(4096|5, 3)) // sent with a new stamp by a gateway that still waits
	if got := read(); !strings.Contains(got, "1:4008000000000000") {
		t.Errorf("a new value is read as %q", got)
	}
}

// TestAnInsertThatWasGivenUpDoesNotReplaceANewerOne: a try lies in a buffer while its rows are staged and acked, or its client brings them again through
// another gateway, and a newer value is acked. Before, the try was accepted and ranked above that.
func TestAnInsertThatWasGivenUpDoesNotReplaceANewerOne(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	insert := func(stamp point.Stamp, v float64) error {
		return st.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: stamp, IDs: []point.SeriesID{0}, Times: []point.Nanos{1}, Values: []float64{v}})
	}
	now := time.Now().UnixNano()
	newest := rank.At(now) | 6
	must(t, insert(newest, 2))
	late := insert(rank.At(now-int64(800*time.Millisecond))|5, 1)
	above, ok := peer.StampAbove(late)
	if !ok || above != newest {
		t.Fatalf("the try of 0.8 s before: %v", late)
	}
	got, err := tryRead(p.server, &peer.Select{Table: "t", Lo: 0, Hi: 10})
	if must(t, err); !strings.Contains(got, "1:4000000000000000") {
		t.Errorf("read %q, want the newer value", got)
	}
	must(t, insert(above+rank.Step, 1)) // its gateway still waits
}

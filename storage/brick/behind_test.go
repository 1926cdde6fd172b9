package brick

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
)

// TestRecordsAreReadInGroupsThatWereDescribedBefore: groups begin behind any record, have one record at least, and all of them together are the log. None is longer than it was said.
func TestRecordsAreReadInGroupsThatWereDescribedBefore(t *testing.T) {
	b, _ := open(t, vfs.NewMem(), Settings{FileBytesMax: fileBytesMin})
	defer mustClose(t, b)
	var want []kept
	for i := range 60 {
		k := put(t, b, point.PlacementID(i%2+1), seq(uint64(i+1)), sizes[i%len(sizes)])
		if k.p == 1 {
			want = append(want, k)
		}
	}
	for _, most := range []int64{0, 5_000, 40_000, 1 << 30} {
		var got []kept
		var at point.Serial
		groups := 0
		for {
			upto, n, bytesMost := b.Behind(1, at, most)
			if n == 0 {
				break
			}
			groups++
			found, length := 0, int64(0)
			err := b.ReplaySome(1, at, upto, func(s point.Serial, rec []byte) error {
				got = append(got, kept{1, s, bytes.Clone(rec)})
				found, length, at = found+1, length+int64(len(rec)), s
				return nil
			})
			if err != nil || found != n || at != upto || length > bytesMost || n > 1 && bytesMost > most {
				t.Fatalf("within %d bytes: %d records up to %v of %d bytes were described as %d up to %v of %d: %v", most, found, at, length, n, upto, bytesMost, err)
			}
		}
		wantKept(t, got, want)
		if most == 0 && groups != len(want) || most == 1<<30 && groups != 1 {
			t.Errorf("%d groups within %d bytes", groups, most)
		}
	}
	if _, n, _ := b.Behind(3, point.Serial{}, 1<<20); n != 0 {
		t.Errorf("%d records of a placement that has none", n)
	}
}

// TestAReaderAwaitsTheFsyncOfWhatItReads, and of nothing behind it.
func TestAReaderAwaitsTheFsyncOfWhatItReads(t *testing.T) {
	fs := &slowFS{FS: vfs.NewMem(), gate: make(chan struct{})}
	close(fs.gate)
	b, _ := open(t, fs, Settings{})
	defer mustClose(t, b)
	put(t, b, 1, seq(1), 100)
	gate := make(chan struct{})
	fs.setGate(gate) // now the device stands still
	w, err := b.Append(1, 1, seq(2), load(1, seq(2), 100))
	if err != nil {
		t.Fatal(err)
	}
	for _, upto := range []point.Serial{{}, seq(1)} {
		if err := b.AwaitSome(1, point.Serial{}, upto); err != nil {
			t.Error(err)
		}
	}
	if err := b.AwaitSome(2, point.Serial{}, seq(2)); err != nil {
		t.Errorf("a placement without records: %v", err)
	}
	waited := make(chan error)
	go func() { waited <- b.AwaitSome(1, point.Serial{}, seq(3)) }()
	for b.OldestWait(time.Now().Add(time.Hour)) < time.Hour {
		runtime.Gosched()
	}
	close(gate)
	if err := <-waited; err != nil || !w.Done() {
		t.Errorf("%v; the record is durable: %v", err, w.Done())
	}
}

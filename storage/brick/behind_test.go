package brick

import (
	"bytes"
	"testing"

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

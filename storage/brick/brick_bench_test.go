package brick

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
)

// BenchmarkAppendWait appends records of 4 KiB on the real disk, each goroutine to its own placement and waiting for
// its fsync each time.
func BenchmarkAppendWait(b *testing.B) {
	for _, g := range []int{1, 4, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", g), func(b *testing.B) {
			br, _ := open(b, vfs.Default, Settings{DataDir: b.TempDir()})
			rec := make([]byte, 4096)
			var left atomic.Int64
			var wg sync.WaitGroup
			left.Store(int64(b.N))
			b.ReportAllocs()
			b.SetBytes(int64(len(rec)))
			b.ResetTimer()
			for p := range point.PlacementID(g) {
				wg.Go(func() {
					for n := uint64(1); left.Add(-1) >= 0; n++ {
						w, err := br.Append(p, 1, seq(n), rec)
						if err == nil {
							err = w.Wait()
						}
						if err != nil {
							b.Error(err)
							return
						}
						if n%64 == 0 {
							br.Release(p, seq(n-1))
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			mustClose(b, br)
		})
	}
}

// BenchmarkAppend is the critical section and the copy: no disk write and no waiting.
func BenchmarkAppend(b *testing.B) {
	br, _ := open(b, discardFS{vfs.NewMem()}, Settings{FileBytesMax: fileBytesMax, InFlightBytesMax: 1 << 40})
	rec := make([]byte, 4096)
	b.ReportAllocs()
	b.SetBytes(int64(len(rec)))
	n := uint64(0)
	for b.Loop() {
		n++
		if _, err := br.Append(1, 1, seq(n), rec); err != nil {
			b.Fatal(err)
		}
		if n%1024 == 0 {
			br.Release(1, seq(n-1))
		}
	}
	mustClose(b, br)
}

// BenchmarkRecover reads a log of 256 MiB with records of 4 KiB from the page cache; every record is applied.
func BenchmarkRecover(b *testing.B) {
	dir := b.TempDir()
	br, _ := open(b, vfs.Default, Settings{DataDir: dir, NoSync: true, InFlightBytesMax: 1 << 30})
	rec := make([]byte, 4096)
	const records = 64 << 10
	for n := range uint64(records) {
		if _, err := br.Append(point.PlacementID(n%16+1), 1, seq(n+1), rec); err != nil {
			b.Fatal(err)
		}
	}
	mustClose(b, br)
	b.SetBytes(records * int64(len(rec)))
	b.ReportAllocs()
	for b.Loop() {
		br, err := Open(Deps{}, Settings{DataDir: dir})
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		if err := br.Recover(none, func(point.PlacementID, point.Serial, []byte) error { n++; return nil }); err != nil {
			b.Fatal(err)
		}
		if n != records {
			b.Fatal(n)
		}
		b.StopTimer()
		mustClose(b, br)
		b.StartTimer()
	}
	_ = os.RemoveAll(dir)
}

// BenchmarkReplay reads one placement of sixteen.
func BenchmarkReplay(b *testing.B) {
	br, _ := open(b, vfs.Default, Settings{DataDir: b.TempDir(), NoSync: true, InFlightBytesMax: 1 << 30})
	rec := make([]byte, 4096)
	const records = 16 << 10
	for n := range uint64(records) {
		if _, err := br.Append(point.PlacementID(n%16+1), 1, seq(n+1), rec); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(records / 16 * int64(len(rec)))
	for b.Loop() {
		n := 0
		if err := br.Replay(3, point.Serial{}, func(point.Serial, []byte) error { n++; return nil }); err != nil || n != records/16 {
			b.Fatal(n, err)
		}
	}
	mustClose(b, br)
}

// BenchmarkRelease releases a million records at once; the figure is per record.
func BenchmarkRelease(b *testing.B) {
	x := newIndex()
	x.addFile(1, 1<<40, true)
	l := x.of(1)
	for i := range uint64(b.N) {
		x.add(l, extent{epoch: 1, seq: i + 1, file: 1, bytes: 100})
	}
	b.ResetTimer()
	x.release(l, seq(uint64(b.N)))
}

package verify

import (
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/partition"
)

// TestSurplusOfAnotherPartitionIsNotSaidToBeHandedOver: a start refuses a surplus file in the directory of another partition, every 2 s anew.
func TestSurplusOfAnotherPartitionIsNotSaidToBeHandedOver(t *testing.T) {
	const name = "segments/0000000000000001/3-4.surplus"
	dir := t.TempDir()
	b := append([]byte("spillway surplus 1\n"), 7, 0, 0, 0) // storage/partition/FORMAT.md
	b = append(b, "default"...)
	for _, n := range []uint64{2, 1, 3, 4} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	f := new(frame.Encoder).Append(nil, &frame.Frame{Kind: frame.Rows, Foreign: true, Stamp: 1 << 10, Defs: []point.Labels{point.MakeLabels("__name__", "up")},
		IDs: []point.DenseID{0}, Times: []point.Nanos{1}, Values: []float64{2}})
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(f))), f...)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
		t.Fatal(err)
	}
	for of, want := range map[point.PartitionID]string{2: FileOK, 1: FileDamaged} {
		v := &Verification{dir: dir, Files: map[string]*File{}}
		if err := v.find(); err != nil {
			t.Fatal(err)
		}
		v.surplusRows()
		v.misplaced(&partition.Identity{Table: "default", Partition: of, Placement: 1})
		if got := v.Files[name]; got.State != want || (v.surplus == 1) != (want == FileOK) {
			t.Errorf("in the directory of partition %d: %+v, %d rows are handed over", of, got, v.surplus)
		}
	}
}

package segment

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestADamagedBlockIsReportedBeforePebbleLooksForTheBit: of a block of megabytes that cost more than a minute of a processor, at each query.
func TestADamagedBlockIsReportedBeforePebbleLooksForTheBit(t *testing.T) {
	fs := vfs.NewMem()
	s := small()
	info := s.write(t, fs, "seg")
	whole := readFile(t, fs, "seg")
	c := openCache(t, 1<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	ours := 0
	for range 200 {
		damaged := bytes.Clone(whole)
		damaged[rng.IntN(len(damaged))] ^= byte(1 + rng.IntN(255))
		writeFile(t, fs, "seg", damaged)
		err := readAll(fs, info, c, true)
		if !fault.Is(err, fault.Corrupt) {
			t.Fatalf("a damaged file: %v", err)
		}
		text := fmt.Sprintf("%+v", err)
		if strings.Contains(text, "checksum mismatch") && !strings.Contains(text, "footer") {
			t.Fatalf("pebble has computed the checksum of a block: %s", text)
		}
		if strings.Contains(err.Error(), "has the checksum") {
			ours++
		}
	}
	if ours < 150 {
		t.Errorf("%d of 200 flips were noticed by the checksum of their block", ours)
	}
}

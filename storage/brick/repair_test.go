package brick_test

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
)

// TestARepairOfADirectoryThatIsNoStoreLeavesItAsItIs: it left a file LOCK there, by which the directory looked like a store that is damaged.
func TestARepairOfADirectoryThatIsNoStoreLeavesItAsItIs(t *testing.T) {
	fs := vfs.NewMem()
	if err := fs.MkdirAll("home", 0o755); err != nil {
		t.Fatal(err)
	}
	for dir, kind := range map[string]fault.Kind{"home": fault.Corrupt, "nowhere": fault.Unavailable} {
		r, err := brick.Examine(brick.Deps{FS: fs}, brick.Settings{DataDir: dir, FreeBytesMin: 1})
		if r != nil || !fault.Is(err, kind) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "no store") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if names, err := fs.List("home"); err != nil || len(names) > 0 {
		t.Errorf("left behind: %v %v", names, err)
	}
	if _, err := fs.Stat("nowhere"); err == nil {
		t.Error("a directory was made")
	}
}

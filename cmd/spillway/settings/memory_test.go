package settings

import (
	"math"
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/protocols/setting"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]setting.Bytes{"0": 0, "1024": 1024, "1KiB": 1024, "512 MiB": 512 << 20, "4GiB": 4 << 30, "3MB": 3e6, "7B": 7} {
		var s setting.Bytes
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%q is %d, %v; want %d", text, s, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5GiB", "1gb", "9999999TiB", "x"} {
		var s setting.Bytes
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %d", text, s)
		}
	}
}

// TestBudgetFollowsMemory derives unset values, keeps set ones, and stays within the whole.
func TestBudgetFollowsMemory(t *testing.T) {
	for _, machine := range []int64{0, 512 << 20, 2 << 30, 24 << 30, 1 << 40} {
		c := Default()
		if err := c.Budget(machine); err != nil {
			t.Fatal(err)
		}
		parts := c.Storage.HeadBytesMax + c.Storage.CacheBytes + c.Intake.InFlightBytesMax + setting.Bytes(c.Intake.SeriesMax)*SeriesBytes
		if all := c.Storage.MemoryBytes; parts > all || parts < all/8 && all < 1<<35 {
			t.Errorf("machine of %d: %d in parts of a budget of %d", machine, parts, all)
		}
		if staging, all := c.Storage.StagingBytesMax, c.Storage.MemoryBytes; staging < stagingLeast || staging > stagingMost || staging > stagingLeast && staging > all/16 {
			t.Errorf("machine of %d: %d bytes of staged rows in a budget of %d", machine, staging, all)
		}
		staging := Default()
		staging.role = Storage
		err := staging.Budget(machine)
		s := &staging.Storage
		if all := s.HeadBytesMax + s.CacheBytes + s.StagingBytesMax + staging.Intake.InFlightBytesMax + setting.Bytes(staging.Intake.SeriesMax)*KeptBytes; err != nil || s.HeadBytesMax > headLeast && all > s.MemoryBytes {
			t.Errorf("machine of %d: staged rows are beyond the budget: %d of %+v, %v", machine, all, *s, err)
		}
		if err := c.ForIntake().Validate(); err != nil {
			t.Errorf("machine of %d: %v", machine, err)
		}
		staging.Peer.Insecure = true
		peers := staging.ForPeers(rpc.Identity{})
		if err := peers.Validate(); err != nil {
			t.Errorf("machine of %d: %v", machine, err)
		}
		if all := peers.InsertBytesMax + peers.DecodedBytesMax + peers.RequestBytesMax; all > max(4*peersLeast, int64(s.MemoryBytes)/2) {
			t.Errorf("machine of %d: peers may hold %d bytes in a budget of %d", machine, all, s.MemoryBytes)
		}
	}
	c := Default()
	c.Storage.MemoryBytes, c.Storage.HeadBytesMax, c.Intake.SeriesMax, c.Storage.StagingBytesMax = 1<<30, 77, 88, 99
	if err := c.Budget(1 << 40); err != nil || c.Storage.HeadBytesMax != 77 || c.Intake.SeriesMax != 88 || c.Storage.StagingBytesMax != 99 || c.Storage.MemoryBytes != 1<<30 {
		t.Errorf("what was set became %+v, %v", c.Storage, err)
	}
	c = Default()
	c.Storage.MemoryBytes = 1 << 20
	if err := c.Budget(1 << 40); err == nil {
		t.Error("a budget of 1 MiB is taken")
	}
}

func TestMemoryLimitsAreRead(t *testing.T) {
	if n := totalOf([]byte("MemFree: 1 kB\nMemTotal:       24000000 kB\n")); n != 24000000<<10 {
		t.Errorf("MemTotal is %d", n)
	}
	if n := limitOf([]byte("max\n")); n != math.MaxInt64 {
		t.Errorf("max is %d", n)
	}
	if n := limitOf([]byte("1073741824\n")); n != 1<<30 {
		t.Errorf("a limit is %d", n)
	}
	got := groupFiles([]byte("12:memory:/a\n5:cpu:/x\n0::/b/c\n"))
	want := []string{"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
		"/sys/fs/cgroup/b/c/memory.max", "/sys/fs/cgroup/b/memory.max", "/sys/fs/cgroup/memory.max"}
	if !slices.Equal(got, want) {
		t.Errorf("files %q", got)
	}
	if MemoryOfMachine() < 64<<20 {
		t.Errorf("this machine has %d bytes", MemoryOfMachine())
	}
}

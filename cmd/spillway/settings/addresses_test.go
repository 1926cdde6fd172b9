package settings

import (
	"math"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// TestAProcessDoesNotStartWithFewerAddressesThanItsMemoryNeeds: one of 512 MiB started under ulimit -v 1500000, and the first flood of one tenant's rows ended it with "fatal error: out of memory",
// at 380 MiB, for all tenants.
func TestAProcessDoesNotStartWithFewerAddressesThanItsMemoryNeeds(t *testing.T) {
	f := func(memory int64, limit uint64, fits bool) {
		t.Helper()
		var c Config
		c.Storage.MemoryBytes = 0
		if memory != 0 {
			c.Storage.MemoryBytes = setting.Bytes(memory)
		}
		err := c.Budget(min(16<<30, addressRoom(limit)))
		if err == nil {
			err = c.addresses(limit)
		}
		if (err == nil) != fits || err != nil && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "ulimit -v")) {
			t.Errorf("memory %d, limit %d: %d bytes, %v", memory, limit, c.Storage.MemoryBytes, err)
		}
	}
	f(512<<20, 1_500_000<<10, false)
	f(512<<20, 2_000_000<<10, false)
	f(512<<20, 2300<<20, true)
	f(512<<20, math.MaxUint64, true) // unlimited
	f(0, 1_500_000<<10, false)
	f(0, 4<<30, true) // less than of this machine
	f(0, math.MaxUint64, true)
	f(8<<30, 11<<30, false)
	f(8<<30, 12<<30, true)
}

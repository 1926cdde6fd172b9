package settings

import (
	"math"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// The address space of the process, where a limit bounds it, RLIMIT_AS:
//
//	limit ─┬─ 1.5 GiB        programs and what the runtime reserves and never touches: measured, 1.3 GiB
//	       └─ the rest       five quarters of storage.memory_bytes: the runtime keeps the addresses of memory that was freed
//
// Where no address is left the runtime ends the process. The accounts do not prevent that: they count memory, not addresses.

// addressesOwn is what a process needs beside its memory.
const addressesOwn = 1536 << 20

// addressRoom is the most that storage.memory_bytes may be under a limit of addresses.
func addressRoom(limit uint64) int64 {
	if limit > math.MaxInt64 {
		return math.MaxInt64
	}
	return max(0, int64(limit)-addressesOwn) / 5 * 4
}

// addresses says whether the memory of the process fits the limit of its addresses. Errors are Invalid.
func (c *Config) addresses(limit uint64) error {
	if room := addressRoom(limit); int64(c.Storage.MemoryBytes) > room {
		return fault.Errorf(fault.Invalid, "the process may have %d MiB of address space, and needs %d MiB at least for a memory of %d MiB; raise the limit (ulimit -v, LimitAS= of a systemd unit), "+
			"or lower --memory: this limit has room for %d MiB, and %d MiB is the least", limit>>20, (addressesOwn+int64(c.Storage.MemoryBytes)/4*5)>>20, int64(c.Storage.MemoryBytes)>>20, room>>20, int64(MemoryLeast)>>20)
	}
	return nil
}

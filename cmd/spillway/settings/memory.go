package settings

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// The memory of the process, from one number:
//
//	storage.memory_bytes ─┬─ 3/8   storage.head_bytes_max         rows not yet flushed: mapped, outside the collector's heap
//	                      ├─ 1/16  storage.cache_bytes            blocks of segments
//	                      ├─ 1/16  intake.in_flight_bytes_max     bodies and batches under way
//	                      └─ 1/2   intake.series_max × 700 B      names of series of all tables, their numbers and indexes
//
// Of a storage server inserts and requests of peers are bounded beside these (ForPeers): a quarter and two eighths at most, or 64 MiB each where that is more.
//
// Every share is a bound that is seldom reached; queries, flushes and garbage use the memory that the others leave. Where rows are staged,
// the share of rows that are not flushed leaves storage.staging_bytes_max to them: 1/16.
//
// Values that a user sets stay. The collector's limit is what the rows in heads leave of the budget (cmd/spillway/process/heap.go): it works harder when that runs
// short, and does not let garbage grow to the size of the live heap.

const (
	MemoryParts   = 32        // of the budget: the unit of the floors of accounts (cmd/spillway/process/accounts.go)
	memoryShare   = 60        // of the machine or the control group, in percent, unless set
	MemoryLeast   = 320 << 20 // below this a single request of the largest size would not fit beside the rest
	inFlightLeast = 96 << 20  // one request, packed and unpacked
	inFlightMost  = 1 << 30
	headLeast     = 32 << 20
	stagingLeast  = 64 << 20
	stagingMost   = 2 << 30 // everything staged is read at the start
	cacheLeast    = 16 << 20
	cacheMost     = 256 << 20 // compactions read through it too: it will fill up to its bound
	compactLeast  = 16 << 20
	compactMost   = 64 << 20 // more saves little reading
	SeriesBytes   = 700      // measured: storage/server/DESIGN.md
	KeptBytes     = 400      // of a series of a storage server, which has no gateway's dictionaries: labels, index, numbers, and the collector's slack
	seriesLeast   = 50_000
	seriesMost    = 20_000_000
)

// Budget fills the settings that depend on the machine's memory and were not set.
func (c *Config) Budget(machine int64) error {
	if c.Storage.MemoryBytes == 0 {
		c.Storage.MemoryBytes = setting.Bytes(max(machine/100*memoryShare, MemoryLeast))
	}
	all := c.Storage.MemoryBytes
	if all < MemoryLeast {
		return fault.Errorf(fault.Invalid, "storage.memory_bytes is %d; less than %d does not hold the process and one large request", int64(all), int64(MemoryLeast))
	}
	share := func(dst *setting.Bytes, n, least, most setting.Bytes) {
		if *dst == 0 {
			*dst = min(max(n, least), most)
		}
	}
	share(&c.Storage.CacheBytes, all/16, cacheLeast, cacheMost)
	share(&c.Storage.StagingBytesMax, all/16, stagingLeast, stagingMost)
	share(&c.Intake.InFlightBytesMax, all/16, inFlightLeast, inFlightMost)
	each := setting.Bytes(SeriesBytes)
	if c.role == Storage {
		each = KeptBytes
	}
	if c.Intake.SeriesMax == 0 {
		c.Intake.SeriesMax = int(min(max(all/2/each, seriesLeast), seriesMost))
	}
	left := all - c.Storage.CacheBytes - c.Intake.InFlightBytesMax - setting.Bytes(c.Intake.SeriesMax)*each
	heads := min(all/8*3, left)
	if c.role == Storage && c.Storage.Staging {
		heads -= c.Storage.StagingBytesMax
	}
	share(&c.Storage.HeadBytesMax, heads, headLeast, math.MaxInt64)
	return nil
}

// Bounds of inserts and requests that the other processes of a cluster send to a storage server.
const (
	peersLeast        = 64 << 20 // the window of a stream of inserts, and some long reads
	peerInsertsMost   = 256 << 20
	peerDecodedMost   = 512 << 20
	peerRequestsMost  = 2 * peer.MapBytesMax
	peerInsertsShare  = 8
	peerDecodedShare  = 8
	peerRequestsShare = 4

	peerLinksShare = 8
	peerLinksLeast = 2 * (peer.LinkFrameBytesMax + 4<<10) // two of the longest frames
	peerLinksMost  = 512 << 20

	recentShare = 64 // the newest frames of partitions with copies
	recentLeast = 4 << 20
	recentMost  = 64 << 20
)

// LogReadBytes bounds the memory in which a storage server reads its log for copies that are behind.
func (c *Config) LogReadBytes() int64 { return c.RecentBytes() }

// RecentBytes bounds the newest frames of all partitions of a storage server that have copies.
func (c *Config) RecentBytes() int64 {
	return min(max(int64(c.Storage.MemoryBytes)/recentShare, recentLeast), recentMost)
}

// ForPeers returns the settings of a storage server for its peers, of which own is the server's identity. A server of 2 GiB accepts the longest METADATA file, of 256 MiB.
func (c *Config) ForPeers(own rpc.Identity) rpc.Settings {
	share := func(of, most int64) int64 { return min(max(int64(c.Storage.MemoryBytes)/of, peersLeast), most) }
	return rpc.Settings{TLS: c.Peer.TLS(own), InsertBytesMax: share(peerInsertsShare, peerInsertsMost),
		DecodedBytesMax: share(peerDecodedShare, peerDecodedMost), RequestBytesMax: share(peerRequestsShare, peerRequestsMost), StrangersMax: c.strangersMax}
}

// LinkBytes bounds the frames of copies that other storage servers have sent, and that are not in the log.
func (c *Config) LinkBytes() int64 {
	return min(max(int64(c.Storage.MemoryBytes)/peerLinksShare, peerLinksLeast), peerLinksMost)
}

// MemoryOfMachine is the least of the machine's memory and the limits of the process's control groups; 2 GiB where
// neither can be read.
func MemoryOfMachine() int64 {
	least := int64(math.MaxInt64)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		least = min(least, totalOf(text))
	}
	if text, err := os.ReadFile("/proc/self/cgroup"); err == nil {
		for _, file := range groupFiles(text) {
			if limit, err := os.ReadFile(file); err == nil {
				least = min(least, limitOf(limit))
			}
		}
	}
	if least == math.MaxInt64 {
		return 2 << 30
	}
	return least
}

// totalOf reads the line MemTotal of /proc/meminfo.
func totalOf(meminfo []byte) int64 {
	for line := range bytes.Lines(meminfo) {
		if f := strings.Fields(string(line)); len(f) > 1 && f[0] == "MemTotal:" {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				return n << 10
			}
		}
	}
	return math.MaxInt64
}

// groupFiles are the files that may hold the limits of the groups in /proc/self/cgroup, and of those above them. In a
// container the paths are often those of the host; then only the root is there, and it is the container's.
func groupFiles(groups []byte) []string {
	var files []string
	for line := range bytes.Lines(groups) {
		f := strings.SplitN(strings.TrimSpace(string(line)), ":", 3)
		if len(f) != 3 {
			continue
		}
		root, file := "/sys/fs/cgroup", "memory.max"
		if f[1] == "memory" {
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if f[1] != "" {
			continue
		}
		for p := filepath.Clean("/" + f[2]); ; p = filepath.Dir(p) {
			files = append(files, filepath.Join(root, p, file))
			if p == "/" {
				break
			}
		}
	}
	return files
}

// limitOf reads a limit file: a number of bytes, or max.
func limitOf(text []byte) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n <= 0 {
		return math.MaxInt64
	}
	return n
}

package settings

import (
	"log/slog"
	"math"

	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/storage/segment"
)

// The file descriptors of the process, from one number, RLIMIT_NOFILE:
//
//	limit ─┬─ 128            log, catalogue, coordination rows, listeners, segments being written, neighbours
//	       ├─ 1/2 the rest   intake.conns_max            at most 16,384
//	       │                 of a storage server: half of it for connections without a certificate, at most 512, and the other half for peers and the admin port
//	       └─ the rest       storage.open_files_max      at most 4,096: segments beyond are opened again when they are read
//
// The soft limit is raised to the hard one first. Values that a user sets stay, unless they exceed the limit.

const (
	filesOwn   = 128 // measured with 400 partitions and idle: 43
	filesLeast = 64  // of connections and segments together
)

// descriptors fills the settings that depend on the number of files the process may open. Errors are Invalid.
func (c *Config) descriptors(limit uint64) error {
	if limit < filesOwn+filesLeast {
		return fault.Errorf(fault.Invalid, "the process may have %d files open, and needs %d at least; raise the limit: ulimit -n, LimitNOFILE= of a systemd unit, or --ulimit nofile= of a container",
			limit, filesOwn+filesLeast)
	}
	left := int(min(limit-filesOwn, math.MaxInt32))
	share := func(dst *int, most int) {
		if *dst <= 0 {
			*dst = most
		}
		*dst = min(*dst, left/2)
	}
	share(&c.Intake.ConnsMax, intake.ConnsMax)
	share(&c.Storage.OpenFilesMax, segment.FilesMax)
	c.strangersMax = min(left/4, rpc.StrangersMax)
	return nil
}

// NoteDescriptors warns of a limit that leaves less than half of the usual connections or segments. It is the first line of the log, and
// few senders come near the usual numbers.
func (c *Config) NoteDescriptors(log *slog.Logger) {
	if c.Intake.ConnsMax < intake.ConnsMax/2 || c.Storage.OpenFilesMax < segment.FilesMax/2 {
		log.Warn("few files may be open: connections and open segments are bounded below their defaults; raise the limit of open files (ulimit -n)",
			"limit", fileLimit(), "conns_max", c.Intake.ConnsMax, "open_files_max", c.Storage.OpenFilesMax)
	}
}

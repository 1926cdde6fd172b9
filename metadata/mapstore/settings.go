package mapstore

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Disk keeps METADATA files. All methods may be called from many goroutines.
type Disk interface {
	// Put keeps a file durably before it returns; one of the same name is replaced. m is its map; f.Map may be the same
	// encoded. f.Ops, where they are given, lead to it from f.Base, and may be kept in its place. It keeps no reference to f's
	// memory. Errors are Unavailable.
	Put(f *peer.File, m *topology.Map) error
	// Get reads a file and its map, and checks them against each other. The file need not hold the encoded map. Errors are
	// NotFound, Corrupt or Unavailable.
	Get(table string, txn peer.TxnID) (*peer.File, *topology.Map, error)
	// List returns all files without their maps, read from their headers. It is called first. Errors are Corrupt
	// or Unavailable.
	List() ([]Info, error)
	// Delete removes files, now or at the next Put. Absent ones are fine. Errors are Unavailable.
	Delete(files ...Info) error
	// Tidy does the work that Put postponed, in the background: no caller waits for it. Errors are Unavailable.
	Tidy() error
}

// Deps are the dependencies that the caller hands in.
type Deps struct {
	Store coord.Store
	// Peers reaches other metadata servers.
	Peers func(topology.ServerID) (peer.Metadata, bool)
	Log   *slog.Logger
	// Registerer registers the metrics; nil: none are kept.
	Registerer prometheus.Registerer
	// Rand makes transaction ids and jitter. It is used under a lock, and kept.
	Rand *rand.Rand

	// Acted returns the newest transaction of a table that this server ever acted by, from its disk; nil, or zero: it is not known.
	Acted func(table string) peer.Acted

	// First is the metadata server to ask first: the one in this process; empty: none.
	First topology.ServerID

	// Self and Disk are set on a metadata server only.
	Self topology.ServerID
	Disk Disk
}

// Settings are numbers a user sets.
type Settings struct {
	// StoreTimeout ends a request to the coordination store. Default 2 s.
	StoreTimeout time.Duration
	// FetchTimeout ends a request for a file to another metadata server; after HedgeAfter a second one is asked beside it.
	// Default 30 s. Larger: a map of hundreds of MiB comes by a slow network.
	FetchTimeout time.Duration
	// PeerTimeout ends a request to another metadata server. Default 3 s. Larger: a dead one delays a transaction longer where
	// there is no majority without it.
	PeerTimeout time.Duration
	// ChangeTimeout ends a transaction. Default 15 s.
	ChangeTimeout time.Duration
	// QueueMax bounds the changes that wait for their turn on one table. Default 64; beyond, they are Throttled.
	QueueMax int
	// PeerQueueMax bounds the files on their way to one server. Default 16; others wait.
	PeerQueueMax int
	// PeerWaitingMax bounds the files that wait for their way to one server. Default 1024; beyond, it is counted as away.
	PeerWaitingMax int
	// CacheBytes bounds the maps kept decoded, counted as encoded. Default 64 MiB. Larger: less decoding with many tables.
	CacheBytes int
	// KeepFiles is how many transactions before the committed one are kept. Default 16. Larger: a transaction proposed
	// again is recognised for longer.
	KeepFiles int
	// UndecidedMax bounds the undecided files of a table. Default 16.
	UndecidedMax int
	// SweepEvery is the pause between sweeps. Default 1 min.
	SweepEvery time.Duration
	// CatchUpGrace is how long a missing file is waited for before it is fetched: it may be on its way. Default 250 ms.
	CatchUpGrace time.Duration
}

func (s *Settings) setDefaults() {
	or := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	orInt := func(d *int, v int) {
		if *d == 0 {
			*d = v
		}
	}
	or(&s.StoreTimeout, 2*time.Second)
	or(&s.PeerTimeout, 3*time.Second)
	or(&s.FetchTimeout, 30*time.Second)
	or(&s.ChangeTimeout, 15*time.Second)
	or(&s.SweepEvery, time.Minute)
	or(&s.CatchUpGrace, 250*time.Millisecond)
	orInt(&s.QueueMax, 64)
	orInt(&s.PeerQueueMax, 16)
	orInt(&s.PeerWaitingMax, 1024)
	orInt(&s.CacheBytes, 64<<20)
	orInt(&s.KeepFiles, 16)
	orInt(&s.UndecidedMax, 16)
}

// Validate reports settings that cannot work. Errors are Invalid.
func (s Settings) Validate() error {
	if s.StoreTimeout < 0 || s.PeerTimeout < 0 || s.FetchTimeout < 0 || s.ChangeTimeout < 0 || s.SweepEvery < 0 || s.CatchUpGrace < 0 ||
		s.QueueMax < 0 || s.PeerQueueMax < 0 || s.PeerWaitingMax < 0 || s.CacheBytes < 0 || s.KeepFiles < 0 || s.UndecidedMax < 0 {
		return fault.Errorf(fault.Invalid, "settings of METADATA files: nothing may be negative: %+v", s)
	}
	return nil
}

// limited returns a context that outlives the caller, but not its own time.
func limited(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

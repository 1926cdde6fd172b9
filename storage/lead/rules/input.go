package rules

import (
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Input is an input of a Machine.
type Input interface{ input() }

// Tick reports that time went on.
type Tick struct{}

// Table is the newest state of a table, with its placements here. Map is nil if there is none.
type Table struct {
	Name string
	Map  *topology.Map
	Txn  peer.TxnID     // of the map; zero: not known
	Row  coord.Revision // of the table's row that named the map
	Held []Held         // the machine determines Covered
}

// Round compares the placements here with the maps: of tables that changed, or, Full, of all that have a map or placements here.
type Round struct {
	Tables []Table
	Full   bool
}

// LeaseBegan and LeaseEnded are the lease machine's Leads and Stops; InSyncAnswered is its InSyncSet.
type (
	LeaseBegan     struct{ lease.Leads }
	LeaseEnded     struct{ lease.Stops }
	InSyncAnswered struct{ lease.InSyncSet }
)

// Want reports that a first row of an epoch waits until no other placement can acquire the partition. The caller reads Holding afterwards, and again at each
// Changed.
type Want struct {
	Partition lease.Partition
	Epoch     point.Epoch
	// Placed are the placements on live servers, this one first.
	Placed []lease.Member
}

// Servers are the storage servers of the cluster as they are registered. Until it is given, a first row waits for as many placements on live servers as
// the table's replicas ask for.
type Servers struct{ All []Server }

// Server is one server.
type Server struct {
	ID     topology.ServerID
	Host   string
	Copies bool // it keeps copies of partitions that others lead
	Leaves bool // it is drained, or was never reached: no partition gets a placement there
}

// Relist asks for an in-sync list on behalf of the chain of an epoch (storage/chain). Answered by Listed with the same Ask, which is not 0.
type Relist struct {
	Partition lease.Partition
	Epoch     point.Epoch
	Ask       uint64
	Members   []lease.Member
}

// Published reports, about once a second, how busy this server is, whether its heartbeat is good, and why it accepts no rows ("": it does).
type Published struct {
	Load     float64
	Good     bool
	ReadOnly string
	// Room, NoRoom and Fsync are those of lease.Loaded.
	Room   int64
	NoRoom []lease.Partition
	Fsync  time.Duration
}

// Accepted reports how many rows were accepted here for partitions, as their leader, since the process began: all that accepted any, about every MeterEvery.
type Accepted struct{ All []Count }

// Count is of one partition.
type Count struct {
	Partition lease.Partition
	Rows      uint64
}

// Unloaded reports that all rows of a partition are acked at level all by its heirs. It accepts no more rows, so this stays true.
type Unloaded struct {
	Partition lease.Partition
	Epoch     point.Epoch
}

// Answers carry the ID of the question. Each question gets one.
type (
	// Recorded answers Record. ReadOnly: the store accepts nothing at all.
	Recorded struct {
		ID       uint64
		OK       bool
		ReadOnly bool
	}
	// LeaseRead answers ReadLease. OK: the store answered; Found: there is a row.
	LeaseRead struct {
		ID    uint64
		OK    bool
		Found bool
		Row   coord.Row
	}
	// LeaseGuarded answers GuardLease, whether it was written or not.
	LeaseGuarded struct{ ID uint64 }
	// Removed answers RemovePlacement.
	Removed struct {
		ID uint64
		OK bool
	}
	// Quiet answers Quiesce. OK: no change is under way. Ends are the last frames of all epochs, Empty that no row was ever accepted.
	Quiet struct {
		ID    uint64
		OK    bool
		Ends  []point.EpochEnd
		Empty bool
	}
	// Answered answers Ready: a majority of the table's metadata servers answers.
	Answered struct {
		ID uint64
		OK bool
	}
	// Proposed answers Propose. Base is the highest map for which Plan returned ops, 0 if none: then nothing was proposed.
	Proposed struct {
		ID   uint64
		OK   bool // it is committed
		Base uint64
	}
	// RuledOut answers RuleOut: earlier proposals on the map Seq cannot be committed any more.
	RuledOut struct {
		ID  uint64
		OK  bool
		Seq uint64
	}
)

func (Tick) input()           {}
func (Round) input()          {}
func (LeaseBegan) input()     {}
func (LeaseEnded) input()     {}
func (InSyncAnswered) input() {}
func (Want) input()           {}
func (Relist) input()         {}
func (Servers) input()        {}
func (Published) input()      {}
func (Accepted) input()       {}
func (Unloaded) input()       {}
func (Recorded) input()       {}
func (LeaseRead) input()      {}
func (LeaseGuarded) input()   {}
func (Removed) input()        {}
func (Quiet) input()          {}
func (Answered) input()       {}
func (Proposed) input()       {}
func (RuledOut) input()       {}

// Effect is an action requested by a Machine. Effects are performed in order; questions may be answered in any order.
type Effect interface{ effect() }

// Assign gives the lease machine the placements that may lead, with the brick's epochs, which the runner fills in.
type Assign struct{ All []lease.Assigned }

// LeaseInput is an input of the lease machine.
type LeaseInput struct{ Input lease.Input }

// Actions on a partition's gate; package gate has the meaning of each.
type (
	Seal     struct{ Partition lease.Partition }
	Open     struct{ Partition lease.Partition }
	HandOver struct{ Partition lease.Partition }
	TakeBack struct{ Partition lease.Partition }
	Doubt    struct {
		Partition lease.Partition
		Seq       uint64
	}
	Settle struct {
		Partition lease.Partition
		Seq       uint64
	}
)

// Quiesce waits for the moment at which no change of a partition is under way.
type Quiesce struct {
	ID        uint64
	Partition lease.Partition
	Within    time.Duration
}

// Ready asks whether a majority of a table's metadata servers answers.
type Ready struct {
	ID     uint64
	Table  string
	Within time.Duration
}

// Propose requests a change of the map. Plan makes its ops, as often as the map changes meanwhile; it is not called
// after the answer.
type Propose struct {
	ID        uint64
	Partition lease.Partition
	Low       point.PartitionID // of a split that ends; 0: an unload ends
	Within    time.Duration
}

// Plan returns the ops on a map. leads says whether this server leads the partition at this moment. Errors are Stale: it was
// overtaken.
func (e Propose) Plan(m *topology.Map, leads bool) ([]topology.Op, error) {
	at, ok := m.ByID(e.Partition.ID)
	switch {
	case e.Low == 0 && !ok, e.Low != 0 && ok && at.State == topology.Unload && at.Into[0] == e.Low:
		return nil, nil // it is done already
	case !leads:
		return nil, fault.Errorf(fault.Stale, "partition %v is led by another now: that one goes on", e.Partition)
	case e.Low == 0:
		return []topology.Op{topology.UnloadFinal{Partition: e.Partition.ID}}, nil
	case !ok || at.State != topology.Splitting || at.Split.Low.ID != e.Low:
		return nil, fault.Errorf(fault.Stale, "the split of partition %v into %d and another is over", e.Partition, e.Low)
	}
	return []topology.Op{topology.SplitFinalize{Partition: e.Partition.ID, Low: e.Low}}, nil
}

// RuleOut asks the coordination store to make sure that no earlier proposal for a table is committed any more.
type RuleOut struct {
	ID     uint64
	Table  string
	Within time.Duration
}

// ReadLease asks for a partition's lease row.
type ReadLease struct {
	ID        uint64
	Partition lease.Partition
}

// GuardLease asks for a lease row to be written where it is still at Revision.
type GuardLease struct {
	ID        uint64
	Partition lease.Partition
	Revision  coord.Revision
	Lease     lease.Lease
}

// Record stores the highest transactions seen of tables, durably; 0 forgets one.
type Record struct {
	ID   uint64
	Seqs []Seen
}

// Seen is the highest transaction of a table that was ever seen here. A zero Txn is not known.
type Seen struct {
	Table string
	Seq   uint64
	Txn   peer.TxnID
}

func (s Seen) String() string { return fmt.Sprintf("{%s %d}", s.Table, s.Seq) }

// RemovePlacement removes a placement and all its rows. IfEmpty: only if it accepted no row yet. A leader with an older map may send it a first row meanwhile,
// and count on it for the ack: such a placement is removed only when the leader counts on others.
type RemovePlacement struct {
	ID        uint64
	Partition lease.Partition
	Placement point.PlacementID
	IfEmpty   bool
	Why       string
}

// Forget drops the state of a partition that is gone.
type Forget struct{ Partition lease.Partition }

// Unload begins, or ends, the moving of a partition's rows to its heirs, under an epoch that is led here (storage/unload). Answered by
// Unloaded when all are there.
type Unload struct {
	Partition lease.Partition
	Epoch     point.Epoch
	On        bool
	// First: under this epoch the partition was led here before it was sealed, so no server has moved its rows under an earlier one.
	First bool
}

// Listed answers Relist, with the epoch and the list of the row as last seen.
type Listed struct {
	Partition lease.Partition
	Ask       uint64
	OK        bool
	Epoch     point.Epoch
	List      []lease.Member
}

// Changed reports that the answer of Holding may have changed.
type Changed struct{ Partition lease.Partition }

// Alarmed is something that a person should look at. Partition 0: of the table as a whole. It is raised once.
type Alarmed struct {
	Partition lease.Partition
	Why       string
}

// Note is an event or failure, for the log.
type Note struct {
	Partition lease.Partition
	What      Event
	Why       string
}

// Event is the kind of a Note.
type Event uint8

const (
	// SplitDone: the halves of a partition lead.
	SplitDone Event = iota
	// UnloadDone: a partition without rows, or all of whose rows are in its heirs, is out of the map.
	UnloadDone
	// AttemptFailed: a split or an unload did not end; it is tried again.
	AttemptFailed
	// StopTimedOut: changes under way when a lease ended did not end in time.
	StopTimedOut
	// RoundFailed: discovery of a table is not done; it is done again.
	RoundFailed
)

func (Assign) effect()          {}
func (LeaseInput) effect()      {}
func (Seal) effect()            {}
func (Open) effect()            {}
func (HandOver) effect()        {}
func (TakeBack) effect()        {}
func (Doubt) effect()           {}
func (Settle) effect()          {}
func (Quiesce) effect()         {}
func (Ready) effect()           {}
func (Propose) effect()         {}
func (RuleOut) effect()         {}
func (ReadLease) effect()       {}
func (GuardLease) effect()      {}
func (Record) effect()          {}
func (RemovePlacement) effect() {}
func (Forget) effect()          {}
func (Unload) effect()          {}
func (Listed) effect()          {}
func (Changed) effect()         {}
func (Alarmed) effect()         {}
func (Note) effect()            {}

package lease

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Time is the reading of a server's own clock, which never jumps and counts the time that the machine was suspended.
// Only differences are meaningful, and only on one server.
type Time = time.Duration

// Input is an input of a Machine.
type Input interface{ input() }

// Tick reports that time went on. Wall is the wall clock, written into heartbeat rows.
type Tick struct{ Wall time.Time }

// Answer is the store's answer to the Commit or List of that ID. Each needs exactly one answer; a request that was abandoned, or that lost its answer, is
// answered with Unknown.
type Answer struct {
	ID      uint64
	Outcome Outcome
	// Revision of the transaction, or as of which the rows were listed.
	Revision coord.Revision
	Rows     []coord.Row
}

// Outcome is the result of a request.
type Outcome uint8

const (
	// Unknown: no answer. A Commit may have happened, or may happen later.
	Unknown Outcome = iota
	// Done: committed, or listed.
	Done
	// Conflict: a condition did not hold; nothing was written.
	Conflict
	// Throttled: as Unknown, and the store reported overload (C120).
	Throttled
)

// Watched are changes in the order of the store, without gaps since Listed's revision or the last Watched.
type Watched struct{ Events []coord.Event }

// Listed are all rows under Prefix as of a revision, read by the watcher because changes before it were missed.
type Listed struct {
	Rows     []coord.Row
	Revision coord.Revision
}

// Assigned gives this server a placement of a partition. It replaces the last Assigned of the partition.
type Assigned struct {
	Partition Partition
	Placement point.PlacementID
	// Placements are all that the map names, in chain order, as of the table row's revision.
	Placements []topology.Placement
	TableRow   coord.Revision
	// Joining are those that the map lets join: they may be listed, but may not lead before.
	Joining []topology.Placement
	// Parents are the partitions whose rows go to this one: those that were split or merged into it, and are still in the map.
	Parents []point.PartitionID
	// Seq is the map's transaction.
	Seq uint64
	// MinInSync is the minimum size of the in-sync list after an acquisition dropped a silent holder; 0: none is dropped.
	MinInSync int
	// BrickEpoch is the highest epoch that this server's brick has seen for the partition (I3).
	BrickEpoch point.Epoch
}

// places reports whether the map lists the placement of a member.
func (a *Assigned) places(c Member) bool {
	return slices.Contains(a.Placements, topology.Placement{ID: c.Placement, Server: c.Server})
}

// Assignments are many Assigned in one step: a table's transaction changes the comparisons of all its placements.
type Assignments struct{ All []Assigned }

// MapIs says that all Assigned and Unassigned so far of a table are as of that map, and the map's row has that revision. It comes after
// the changes of the map, so that unchanged partitions need not be assigned again.
type MapIs struct {
	Table    string
	Seq      uint64
	TableRow coord.Revision
}

// Unassigned removes the server's placement of the partition; the server releases its lease.
type Unassigned struct{ Partition Partition }

// Loaded publishes, about once a second, the state of the server. Room, NoRoom and Fsync are those of Beat.
type Loaded struct {
	Load     float64 // 1 is its full capacity
	ReadOnly string  // why the server accepts no rows; "": it accepts them
	Room     int64
	NoRoom   []Partition
	Fsync    time.Duration
	Led      []LedRows // the busiest of the partitions that are led here, the busiest first
	Rest     int64     // rows a second of the others that are led here
	Known    bool      // Led and Rest were measured
}

// noRoomMax bounds the partitions that a heartbeat row names in NoRoom.
const noRoomMax = 64

// Damaged are the partitions of which files are damaged here. A placement on another server that is whole acquires their leases first.
type Damaged struct{ All []Partition }

// GiveUp releases a partition, and others may acquire it first for a while (C110).
type GiveUp struct {
	Partition Partition
	Why       string
	// Again: this server acquires it again at once, in a new epoch, unless another is faster.
	Again bool
}

// Offer is GiveUp if another in-sync placement could acquire the partition now; else it does nothing.
type Offer struct {
	Partition Partition
	Why       string
	// Misplaced: the partition must not stay here, so that a server with its full share is good enough.
	Misplaced bool
}

// Stopped answers Stops: the process does not act for the partition any more. Ends go into the row if it is still ours.
type Stopped struct {
	Partition Partition
	Ends      []point.EpochEnd
}

// SetInSync changes the in-sync list and ends of a partition this server leads. InSyncSet answers it.
type SetInSync struct {
	Partition Partition
	Members   []Member
	Ends      []point.EpochEnd
}

// Drain makes the server release the partitions that another server can acquire, one after the other (C124); off undoes it.
type Drain struct{ On bool }

// Leave releases everything at once, because the process is about to end. Left answers when all rows are free.
type Leave struct{}

func (Tick) input()        {}
func (Answer) input()      {}
func (Watched) input()     {}
func (Listed) input()      {}
func (Assigned) input()    {}
func (Assignments) input() {}
func (MapIs) input()       {}
func (Unassigned) input()  {}
func (Loaded) input()      {}
func (Damaged) input()     {}
func (GiveUp) input()      {}
func (Offer) input()       {}
func (Stopped) input()     {}
func (SetInSync) input()   {}
func (Drain) input()       {}
func (Leave) input()       {}

// Effect is an action requested by a Machine.
type Effect interface{ effect() }

// Priority orders requests if the store cannot serve them all: renew before acquire before scan (C120).
type Priority uint8

const (
	Renew Priority = iota
	Acquire
	Scan
)

// String returns the priority's name, for metrics and scripts.
func (p Priority) String() string { return [...]string{"renew", "acquire", "scan"}[p] }

// Commit is a transaction to send.
type Commit struct {
	ID         uint64
	Priority   Priority
	Conditions []coord.Condition
	Writes     []coord.Write
}

// List asks for all rows under a prefix.
type List struct {
	ID       uint64
	Priority Priority
	Prefix   string
}

// Leads: this server leads the partition at that epoch, as long as MayAct says so. Before it acts it raises its brick's
// epoch durably. Until is when that ends unless the heartbeat is renewed.
type Leads struct {
	Partition Partition
	Epoch     point.Epoch
	Lease     Lease
	Until     Time
	// Dropped are those that the acquiring transaction removed from the in-sync list, if this process acquired the lease.
	Dropped []Member
}

// Stops: MayAct is false from now on. Answer with Stopped once nothing acts any more; no Leads comes before.
type Stops struct {
	Partition Partition
	Why       string
	// Lapsed: the row, as last seen, still names us, but the heartbeat was not renewed in time. While that lasts no other server can lead a
	// placement that is alone in sync.
	Lapsed bool
}

// InSyncSet answers SetInSync. If not OK the list is unchanged, or the lease is lost: look at Lease and decide anew.
type InSyncSet struct {
	Partition Partition
	OK        bool
	Lease     Lease
}

// EverLed names partitions, of any server, with rows that show for the first time that they were once led, and those that the machine has
// forgotten because their rows are gone. A partition of the future that was led early must find its other placements ready: so they
// are assigned it, whatever the time (storage/lead/rules).
type EverLed struct{ Led, Forgotten []Partition }

// Left answers Leave.
type Left struct{}

// SetBack says that the store was set back to an older state, from a backup: our heartbeat row has an older revision than it had before. The process
// must end, since its leases, maps and servers may differ from all that the restored store ever had.
type SetBack struct{}

func (Commit) effect()    {}
func (List) effect()      {}
func (Leads) effect()     {}
func (Stops) effect()     {}
func (InSyncSet) effect() {}
func (EverLed) effect()   {}
func (Left) effect()      {}
func (SetBack) effect()   {}

package lease

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Partition names a partition of a table.
type Partition struct {
	Table string
	ID    point.PartitionID
}

// String prints table/id.
func (p Partition) String() string { return p.Table + "/" + strconv.FormatUint(uint64(p.ID), 10) }

// ParsePartition parses what Partition.String prints.
func ParsePartition(s string) (Partition, bool) {
	i := strings.LastIndexByte(s, '/')
	if i < 0 {
		return Partition{}, false
	}
	id, err := strconv.ParseUint(s[i+1:], 10, 64)
	return Partition{s[:i], point.PartitionID(id)}, err == nil
}

// Boot names one run of a server process; random, new at every start.
type Boot string

// StoreID names a store directory; a wiped directory gets a new one (C72).
type StoreID string

// Keys of the rows. Prefix covers them all, so that one list and one watch show a consistent whole.
const (
	Prefix      = "leases/"
	beatPrefix  = Prefix + "beat/"
	rowPrefix   = Prefix + "p/"
	bornPrefix  = Prefix + "born/"
	noPrefix    = Prefix + "no/"
	sweptPrefix = Prefix + "swept/"
)

// BeatKey is the key of a server's heartbeat row.
func BeatKey(s topology.ServerID) string { return beatPrefix + string(s) }

// RowKey is the key of a partition's lease row. Ids have 20 digits, so that no key is the beginning of another.
func RowKey(p Partition) string { return rowPrefix + p.path() }

func bornKey(p Partition) string { return bornPrefix + p.path() }

// ProhibitKey is the key of the row that keeps a partition off a server. It survives acquisitions and renewals (C122).
func ProhibitKey(p Partition, s topology.ServerID) string {
	return noPrefix + p.path() + "/" + string(s)
}

func tableKey(table string) string { return "tables/" + table }

func (p Partition) path() string {
	const zeros = "00000000000000000000"
	id := strconv.FormatUint(uint64(p.ID), 10)
	return p.Table + "/" + zeros[len(id):] + id
}

func parsePath(path string) (Partition, bool) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 || len(path)-i-1 != 20 {
		return Partition{}, false
	}
	id, err := strconv.ParseUint(path[i+1:], 10, 64)
	return Partition{path[:i], point.PartitionID(id)}, err == nil
}

// State says whether a process may act for a partition, by its row.
type State string

const (
	// Held: the process that the row names, while its heartbeat is good.
	Held State = "held"
	// Free: no process. Only a holder that stopped writes this, so a free row may be acquired at once.
	Free State = "free"
	// Gone: the partition was dropped and is never led again. Builds from before this state do not lead by such a row either.
	Gone State = "gone"
)

// Member is a placement that holds every acked frame, with the store directory it held them in.
type Member struct {
	Placement point.PlacementID `json:"placement"`
	Server    topology.ServerID `json:"server"`
	Store     StoreID           `json:"store"`
}

// Note records the author, time and reason of a change by hand.
type Note struct {
	Who    string    `json:"who"`
	When   time.Time `json:"when"`
	Reason string    `json:"reason"`
}

// Lease is a lease row. Epoch 0: no server ever led, and the placements of the partition map may.
type Lease struct {
	State State `json:"state"`
	// Holder, Boot and Store are the last process that led, also after the release.
	Holder topology.ServerID `json:"holder,omitempty"`
	Boot   Boot              `json:"boot,omitempty"`
	Store  StoreID           `json:"store,omitempty"`
	Epoch  point.Epoch       `json:"epoch"`
	// InSync is in chain order; the holder is a member.
	InSync []Member `json:"in_sync,omitempty"`
	// Empty: no row of the partition was ever acked, and none will be before the holder has removed this mark, together with a change of
	// the in-sync list. Only the very first lease row begins so; a partition without the mark may have rows.
	Empty bool `json:"empty,omitempty"`
	// Ends are the last serials of closed epochs, as the holder had them.
	Ends []point.EpochEnd `json:"ends,omitempty"`
	// Offline keeps every process from leading until it is removed (C123).
	Offline *Note `json:"offline,omitempty"`
	// Bump asks the holder to let go at once; the next taker removes it (C121).
	Bump *Note `json:"bump,omitempty"`
	// Next asks the holder to let go, so that the server that it names acquires the lease first. The next taker removes it.
	Next *Next `json:"next,omitempty"`
	// Seq is the transaction of the partition map that changed the partition last; 0: none since rows have it. Acquisitions and changes
	// of the in-sync list wait for a map at least as new. See Guard.
	Seq uint64 `json:"seq,omitempty"`
	// Nonce lets a writer recognize its own row (C117).
	Nonce string `json:"nonce,omitempty"`
}

// Beat is a heartbeat row.
type Beat struct {
	Server topology.ServerID `json:"server"`
	Boot   Boot              `json:"boot"`
	Store  StoreID           `json:"store"`
	// N numbers the renewals of one boot from 1.
	N uint64 `json:"n"`
	// Load is the share of its capacity that the server uses; 1 is all.
	Load float64 `json:"load"`
	Held int     `json:"held"`
	// Draining: the server acquires nothing and releases its leases.
	Draining bool `json:"draining,omitempty"`
	// ReadOnly is the reason why the server accepts no rows: its disk is full. It still leads its partitions for readers, and gets no new placements. "": it
	// accepts rows.
	ReadOnly string `json:"read_only,omitempty"`
	// Room is for how many more bytes the server's disk has room beside its reserve, at least 1 where it is known; 0: it is not.
	Room int64 `json:"room,omitempty"`
	// NoRoom are partitions, as Partition.String prints them, of which rows that were being copied to the server did not fit on its disk. At most noRoomMax are named.
	NoRoom []string `json:"no_room,omitempty"`
	// ClockAhead is how far the server's wall clock is ahead of the median of the servers' clocks, where it is so far off that the server releases its leases
	// (clocks.go); else 0.
	ClockAhead time.Duration `json:"clock_ahead,omitempty"`
	// Damaged are partitions, as Partition.String prints them, of which files are damaged on the server: others acquire their leases first. At most damagedMax are named.
	Damaged []string `json:"damaged,omitempty"`
	// Fsync is how long an fsync of the server's log lasts of late; 0: not known. Builds from before do not say it.
	Fsync time.Duration `json:"fsync,omitempty"`
	// SlowDisk: the server's fsyncs last so much longer than those of the others that it releases its leases, and leaves in-sync lists that are long enough without it (disk.go).
	SlowDisk bool `json:"slow_disk,omitempty"`
	// Writes are the rows that the server accepts as a leader; nil: not known. Builds from before do not say it.
	Writes *Writes `json:"writes,omitempty"`
	// Missing: this is the row of no process. A server that waits until another is silent found no row of it, and wrote this one in its place: the transaction that
	// acquires a lease compares the revision of a row, and "no row" has none (missing.go). Boot is made up.
	Missing bool `json:"missing,omitempty"`
	// Guards: the process writes guards into lease rows when it changes maps (Guard). Builds from before do not.
	Guards bool `json:"guards,omitempty"`
	// Time is the server's wall clock when it sent this, for people and for the median of the servers' clocks (clocks.go). No
	// lease depends on it (C113).
	Time time.Time `json:"time"`
}

const (
	rowVersion = 1
	// RowMax bounds the rows read: 1,000 members and ends are far below.
	RowMax = 256 << 10
)

// Encode returns the row's stored form: JSON with a version.
func (l Lease) Encode() []byte {
	type stored struct {
		V int `json:"v"`
		Lease
	}
	return mustJSON(stored{rowVersion, l})
}

// Encode returns the row's stored form: JSON with a version.
func (b Beat) Encode() []byte {
	type stored struct {
		V int `json:"v"`
		Beat
	}
	return mustJSON(stored{rowVersion, b})
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		fault.Bug("a lease table's row does not encode: %v", err)
	}
	return b
}

// DecodeLease reads a lease row and checks it. Errors are Corrupt: no server leads by such a row.
func DecodeLease(b []byte) (Lease, error) {
	var s struct {
		V int `json:"v"`
		Lease
	}
	if err := decode(b, &s, &s.V); err != nil {
		return Lease{}, fault.Annotate(err, "lease row")
	}
	l := s.Lease
	switch {
	case l.State != Held && l.State != Free && l.State != Gone:
		return Lease{}, fault.Errorf(fault.Corrupt, "lease row in state %q, which this build does not know", l.State)
	case l.State == Held && (l.Holder == "" || l.Boot == "" || l.Epoch == 0):
		return Lease{}, fault.Errorf(fault.Corrupt, "lease row is held by %q, boot %q, epoch %d", l.Holder, l.Boot, l.Epoch)
	}
	return l, nil
}

// DecodeBeat reads a heartbeat row and checks it. Errors are Corrupt.
func DecodeBeat(b []byte) (Beat, error) {
	var s struct {
		V int `json:"v"`
		Beat
	}
	if err := decode(b, &s, &s.V); err != nil {
		return Beat{}, fault.Annotate(err, "heartbeat row")
	}
	if s.Server == "" || s.Boot == "" {
		return Beat{}, fault.Errorf(fault.Corrupt, "heartbeat row of server %q, boot %q", s.Server, s.Boot)
	}
	return s.Beat, nil
}

func decode(b []byte, into any, version *int) error {
	if len(b) > RowMax {
		return fault.Errorf(fault.Corrupt, "%d bytes, more than %d", len(b), RowMax)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fault.Wrap(err, fault.Corrupt, "not in its form")
	}
	if *version != rowVersion {
		return fault.Errorf(fault.Corrupt, "version %d; this build reads version %d", *version, rowVersion)
	}
	return nil
}

// Changes by hand. Each returns the row to write if the old one is still at its revision.

// Bumped asks the holder to let go at once, so that the partition is loaded again.
func (l Lease) Bumped(n Note) Lease { l.Bump = &n; return l }

// TakenOffline keeps every server from leading; a holder lets go.
func (l Lease) TakenOffline(n Note) Lease { l.Offline = &n; return l }

// TakenOnline lets the in-sync placements lead again. The row still names the last holder, so that a holder which has
// not yet seen that it was offline is waited for like any other.
func (l Lease) TakenOnline() Lease { l.Offline = nil; return l }

// Vacated removes an empty partition from its in-sync placements: a holder releases it, and the next taker is one that the partition map
// names then. It is for moves of the partition; for one that is not empty it is a mistake that costs acked rows.
func (l Lease) Vacated() Lease { l.InSync, l.Ends, l.Bump, l.Next = nil, nil, nil, nil; return l }

// Forced lets a partition continue with one placement alone, as of a map in which it is the only live one (C32). Rows that only others
// acked are lost: an administrator accepted that. The writer compares the row, after it saw that no server in its list acts any more.
func (l Lease) Forced(m Member, seq uint64) Lease {
	l.State, l.InSync, l.Ends, l.Bump, l.Next, l.Nonce, l.Seq = Free, []Member{m}, nil, nil, nil, "", max(l.Seq, seq)
	return l
}

// Vacant reports whether the placements of the partition map may lead, whichever led before.
func (l *Lease) Vacant() bool { return l.Empty && len(l.InSync) == 0 }

// Prohibit returns the transaction that keeps a partition off a server; a holder lets go.
func Prohibit(p Partition, s topology.ServerID, n Note) coord.Write {
	type stored struct {
		V int `json:"v"`
		Note
	}
	return coord.Write{Key: ProhibitKey(p, s), Value: mustJSON(stored{rowVersion, n})}
}

// Allow withdraws a prohibition.
func Allow(p Partition, s topology.ServerID) coord.Write {
	return coord.Write{Key: ProhibitKey(p, s), Delete: true}
}

package chain

import (
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Time is the reading of the server's own clock; only differences are meaningful. It counts the time the machine was suspended.
type Time = time.Duration

// Input is an input of a Machine.
type Input interface{ input() }

type (
	// Tick reports that time went on. Awake is how many chains of this process are awake; 0: few.
	Tick struct{ Awake int }

	// Lead says that this placement holds the lease in an epoch which its brick has raised durably. List is the row's in-sync list, Dropped
	// are the members that the acquiring transaction removed.
	Lead struct {
		Epoch   point.Epoch
		List    []Member
		Dropped []Member
	}
	// Lease is the newest epoch in which this server held the lease. GoesOn is true while it holds it, and after it lapsed until the heartbeat is good again:
	// by then another server may lead, so only frames that all members of the list have are acknowledged. A head of another epoch, or without GoesOn, ends its chain and
	// acknowledges nothing more.
	Lease struct {
		Epoch  point.Epoch
		GoesOn bool
	}
	// Placements are the members that the partition map has on live servers, with the stores that they have now, and the minimum number of copies
	// that an acknowledgement means. Slow are those of them on servers with slow disks (metadata/lease, disk.go). Fixed: the list cannot be changed now, since the lease lapsed or the map is too old. Demanded: a shorter list accepts no frames; else one that was shorter from the start continues. Mapped are all placements of the map, on live servers or not; nil: not known.
	Placements struct {
		All       []Member
		Slow      []Member
		Fixed     bool
		MinInSync int
		Demanded  bool
		Mapped    []point.PlacementID
	}
	// ListSet answers the SetList with the same Ask: the row's epoch and in-sync list now, whether the list was changed or not. The row of
	// another epoch says nothing about this one, except that it is over.
	ListSet struct {
		Ask   uint64
		OK    bool
		Epoch point.Epoch
		List  []Member
	}

	// Appended says that the head put a new frame of its own into its log, not yet fsynced.
	Appended struct {
		Serial, Prev point.Serial
		Bytes        int
	}
	// Synced says that this placement has fsynced and applied its log up to a serial.
	Synced struct{ Upto point.Serial }
	// Failed says that a frame could not be logged from a serial on: the log ends at End.
	Failed struct{ End point.Serial }
	// Adopted says that the log's ends have changed, because a segment was adopted, or frames were found. Ends that are older than the machine's change nothing.
	Adopted struct{ Ends []point.EpochEnd }

	// Passed answers PassOn with the frames sent. Missing: the log does not reach back to After any more; nothing was sent.
	Passed struct {
		To      Member
		After   point.Serial
		Upto    point.Serial
		Bytes   int
		Missing bool
	}
	// Received is a message.
	Received struct {
		From    Member
		Message Message
	}
	// Leaving says that this process is about to end: the placement asks its head to remove it from the chain. This stays true until the process ends.
	Leaving struct{}
	// Wanted says that a read needs this placement to be sure, so that a quiet chain wakes.
	Wanted struct{}
	// Linked says that a link to a server is new, and its process may be, too; or that it has ended, and its process may have.
	Linked struct{ Server topology.ServerID }
	// Raised answers Raise: it is durable.
	Raised struct{ Epoch point.Epoch }
	// WasCut answers Cut: the surplus is set aside and the log ends there, durably.
	WasCut struct{ After point.Serial }
)

func (Tick) input()       {}
func (Lead) input()       {}
func (Lease) input()      {}
func (Placements) input() {}
func (ListSet) input()    {}
func (Appended) input()   {}
func (Synced) input()     {}
func (Failed) input()     {}
func (Adopted) input()    {}
func (Passed) input()     {}
func (Received) input()   {}
func (Leaving) input()    {}
func (Wanted) input()     {}
func (Linked) input()     {}
func (Raised) input()     {}
func (WasCut) input()     {}

// Effect is an action requested by a Machine. Effects are performed in order.
type Effect interface{ effect() }

type (
	// Send sends a message to a member's server.
	Send struct {
		To      Member
		Message Message
	}
	// PassOn sends the log's frames behind After, in order, at least one and then up to BytesMax, under the machine's Epoch. Answered
	// by Passed.
	PassOn struct {
		To       Member
		After    point.Serial
		BytesMax int
	}
	// LogIt logs and applies the frame that was just received, under the sender's Epoch. Once it is fsynced and applied: Synced; else Failed.
	LogIt struct {
		Epoch  point.Epoch
		Serial point.Serial
	}
	// Raise raises the brick's epoch durably, which may be done already, and has the partition follow there. Answered by Raised.
	Raise struct{ Epoch point.Epoch }
	// Cut sets the frames behind After aside, durably and with full labels, then cuts the log there and rebuilds the head rows. Answered by
	// WasCut. The frames set aside go to the head of Epoch as inserts, and are forgotten at their `all` ack.
	Cut struct {
		Epoch point.Epoch
		After point.Serial
	}
	// SetList asks for the in-sync list to become this. Answered by ListSet. Ask is another one each time, also after a restart of the machine.
	SetList struct {
		Ask     uint64
		Members []Member
	}
	// Acked: everything up to Upto is kept by all. It rises within an epoch.
	Acked struct {
		Epoch point.Epoch
		Upto  point.Serial
	}
	// Stall: frames wait, and not because servers are busy (Machine.Stalled has the reason). Writers that can stage their rows elsewhere need not wait any
	// longer; the frames stay.
	Stall struct {
		Epoch point.Epoch
		Why   error
	}
	// Over ends the epoch that this placement leads: it was overtaken, or its log failed behind frames that it passed on. Nothing is
	// accepted or acknowledged in that epoch any more, and the lease is released.
	Over struct {
		Epoch point.Epoch
		Why   string
	}
	// Behind: a placement needs segments first, since this log does not reach back to its end.
	Behind struct {
		Member Member
		End    point.Serial
	}
	// Note is a change of the chain, for the log.
	Note struct {
		What   Event
		Member Member
	}
)

// Event is the kind of a Note.
type Event uint8

const (
	// Silent, Slow, Unreached (no frame reaches it from the member before it), Unmapped (the map has it no more), Stops (its process ends in an orderly
	// way) and SlowDisk: a member is removed from the chain.
	Silent Event = iota
	Slow
	Unreached
	Unmapped
	Stops
	SlowDisk
	// TakenIn: a placement that has caught up is in the chain from now on.
	TakenIn
)

// String returns the event's name, for logs and scripts.
func (e Event) String() string {
	return [...]string{"silent", "slow", "not reached", "no longer placed", "stopping", "on a slow disk", "taken in"}[e]
}

func (Send) effect()    {}
func (PassOn) effect()  {}
func (LogIt) effect()   {}
func (Raise) effect()   {}
func (Cut) effect()     {}
func (SetList) effect() {}
func (Acked) effect()   {}
func (Stall) effect()   {}
func (Over) effect()    {}
func (Behind) effect()  {}
func (Note) effect()    {}

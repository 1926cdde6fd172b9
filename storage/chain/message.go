package chain

import (
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Member is a placement with the store directory that has its frames, as the lease row lists it. A placement on an emptied directory is
// another member (C72).
type Member = lease.Member

// Message is a message between placements of one partition. Messages may be lost, doubled and delayed; links keep their order only for
// speed. Every message carries the epoch of its sender.
type Message interface{ message() }

// Begin is the head's: a placement follows it under an epoch, in this order. The first of Order is the head. A receiver that Order does not
// name is joining: the head feeds it.
type Begin struct {
	Epoch   point.Epoch
	Version uint64 // of Order within the epoch, rising from 1
	Order   []Member
	// Ends are those of the head's log when its epoch began: constant for the epoch. Frames of older epochs that the receiver has beyond them
	// are surplus.
	Ends []point.EpochEnd
}

// Pass is a frame; its body travels beside it. Serial may be of an older epoch than the sender's.
type Pass struct {
	Epoch        point.Epoch
	Serial, Prev point.Serial
	Bytes        int
}

// Report goes to the predecessor: all that follow it, itself included, have fsynced and applied up to Upto. End is where its log ends.
type Report struct {
	Epoch     point.Epoch
	Version   uint64
	Upto, End point.Serial
}

// Ping asks for a Pong with the same Sent, which is the sender's clock. A member also reports its position to its head.
type Ping struct {
	Epoch   point.Epoch
	Version uint64 // 0: it does not follow in this epoch yet
	Sent    Time
	// Own is the end that the sender itself has fsynced and applied, End where its log ends.
	Own, End point.Serial
	// Quiet is the head's: the chain is at rest, and the member that agrees stops pinging.
	Quiet bool
}

// Pong answers a Ping with its Sent; one with a Sent that the receiver did not send in its role is ignored. For is how long, from Sent on, the asker may call its answers sure; a member's Pong to its head leaves it 0.
type Pong struct {
	Epoch point.Epoch
	Sent  Time
	For   Time
	Quiet bool // the member agrees to be quiet
}

// Refuse answers a message that was not accepted: Epoch is the one that the sender of this follows or leads, End where its log ends.
type Refuse struct {
	Epoch point.Epoch
	End   point.Serial
}

// Leave is a member's: its process is about to end, and from now on it is never sure. So the head removes it from the chain, and acknowledges without it as
// soon as the row does not list it. Echo is Sent of the newest Ping from this head: it proves that no answer of the head made a later process sure.
type Leave struct {
	Epoch point.Epoch
	Echo  Time
}

// Left answers Leave: no acknowledgement waits for the placement any more, or too few others are left to do without it.
type Left struct{ Epoch point.Epoch }

// EpochOf is the epoch of a message's sender.
func EpochOf(m Message) point.Epoch {
	switch m := m.(type) {
	case Begin:
		return m.Epoch
	case Pass:
		return m.Epoch
	case Report:
		return m.Epoch
	case Ping:
		return m.Epoch
	case Pong:
		return m.Epoch
	case Refuse:
		return m.Epoch
	case Leave:
		return m.Epoch
	case Left:
		return m.Epoch
	}
	return 0
}

func (Begin) message()  {}
func (Pass) message()   {}
func (Report) message() {}
func (Ping) message()   {}
func (Pong) message()   {}
func (Refuse) message() {}
func (Leave) message()  {}
func (Left) message()   {}

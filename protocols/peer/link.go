package peer

import (
	"context"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// A Link joins two storage servers: one connection for the placements of all partitions that both hold.
//
//	urgent   chain and segment messages ──┐
//	frames   log records, in order ───────┼──▶ one stream ──▶ LinkHandler of the other server
//	bulk     pieces of segments ──────────┘
//
// Urgent messages overtake frames, and frames overtake pieces of segments; within a class the order is kept. When a link ends,
// messages on their way are lost: the machines above it (storage/chain, storage/replica) send them again.

// LinkHello is the data that a server sends about itself when a link begins.
type LinkHello struct {
	Server       string   // its id
	Boot         uint64   // of the process: another one at every start
	Store        [16]byte // its store directory
	Capabilities Capabilities
}

// Capabilities are the abilities of a build, a bit each. A link has those that both sides have.
type Capabilities uint64

const (
	// CanFreeze: reads frames of kind freeze (protocols/frame).
	CanFreeze Capabilities = 1 << 0
	// CanLeave: knows the messages ChainLeave and ChainLeft.
	CanLeave Capabilities = 1 << 1
	// CanRest: knows the messages ChainRest and ChainRests.
	CanRest Capabilities = 1 << 2
	// CanCompare: knows the messages CompareAsk and CompareAnswer.
	CanCompare Capabilities = 1 << 3
	// CanAskRoom: a link begins with little room for frames, and more is asked for.
	CanAskRoom Capabilities = 1 << 4
)

// Has reports whether all of c2 are in c.
func (c Capabilities) Has(c2 Capabilities) bool { return c&c2 == c2 }

// Route names the placements of a partition that a message goes from and to.
type Route struct {
	Table     string
	Partition point.PartitionID
	From, To  point.PlacementID
	Epoch     point.Epoch // of the sender, not of the frame
}

// LinkMember is a placement with the store that it lies in, as a lease row lists it.
type LinkMember struct {
	Placement point.PlacementID
	Server    string
	Store     [16]byte
}

// LinkMessage is an urgent message: one of the types below.
type LinkMessage interface{ linkMessage() }

// Messages of a chain. Their meaning is storage/chain's.
type (
	ChainBegin struct {
		Version uint64
		Order   []LinkMember
		Ends    []point.EpochEnd
	}
	ChainReport struct {
		Version   uint64
		Upto, End point.Serial
	}
	ChainPing struct {
		Version  uint64
		Sent     time.Duration
		Own, End point.Serial
	}
	ChainPong struct {
		Sent, For time.Duration
	}
	ChainRefuse struct {
		End point.Serial
	}
	// ChainLeave and ChainLeft are only for servers that can leave.
	ChainLeave struct {
		Echo time.Duration
	}
	ChainLeft struct{}
	// ChainRest and ChainRests are a ping that asks for quiet and the answer that agrees; they are only for servers that can rest.
	ChainRest struct {
		Version  uint64
		Sent     time.Duration
		Own, End point.Serial
	}
	ChainRests struct{ Sent time.Duration }
)

// Messages about segments (C45–C73). A slot is the offerer's number for one offer under way on the link.
type (
	// SegmentOffer offers a segment. Info is its description in the catalogue, as JSON.
	SegmentOffer struct {
		Slot     uint64
		ID, Base point.SegmentID
		Major    bool
		Size     uint64
		Checksum uint64
		Ends     []point.EpochEnd
		Info     []byte
	}
	// SegmentAccept asks for the bytes from Offset on: the receiver kept those before it from an earlier try.
	SegmentAccept struct{ Slot, Offset uint64 }
	// SegmentDecline refuses an offer with a reason, and lists the segments of the placement.
	SegmentDecline struct {
		Slot   uint64
		Reason DeclineReason
		Ends   []point.EpochEnd
	}
	// SegmentCommit reports that all bytes were sent.
	SegmentCommit struct{ Slot uint64 }
	// SegmentAck reports that the segment is durable, in the catalogue of the placement.
	SegmentAck struct {
		Slot uint64
		ID   point.SegmentID
	}
)

// Messages that compare what two placements hold, only for servers that can compare.
type (
	// CompareAsk asks a placement for the digest of its segments, and of its log from behind After to End. One with another end does not answer.
	CompareAsk struct{ After, End point.Serial }
	// CompareAnswer is the answer. Frames is the number of frames in Log.
	CompareAnswer struct {
		After, End    point.Serial
		Segments, Log uint64
		Frames        uint64
	}
)

// DeclineReason is the reason why a segment is refused.
type DeclineReason uint8

// The reasons of the SEGMENT protocol (C45–C72), and two more.
const (
	DeclineExists     DeclineReason = 1 // the placement holds it, or all its content
	DeclineOverloaded DeclineReason = 2 // no slot is free: later
	DeclineInvalid    DeclineReason = 3 // it differs from the offer
	DeclineInflight   DeclineReason = 4 // another server is sending it
	DeclineOutOfOrder DeclineReason = 5 // its base is missing: send the segments before it
	DeclineStaleEpoch DeclineReason = 6 // the sender's epoch was overtaken
	DeclineNoSpace    DeclineReason = 7
)

func (*ChainBegin) linkMessage()     {}
func (*ChainReport) linkMessage()    {}
func (*ChainPing) linkMessage()      {}
func (*ChainPong) linkMessage()      {}
func (*ChainRefuse) linkMessage()    {}
func (*ChainLeave) linkMessage()     {}
func (*ChainLeft) linkMessage()      {}
func (*ChainRest) linkMessage()      {}
func (*ChainRests) linkMessage()     {}
func (*SegmentOffer) linkMessage()   {}
func (*SegmentAccept) linkMessage()  {}
func (*SegmentDecline) linkMessage() {}
func (*SegmentCommit) linkMessage()  {}
func (*SegmentAck) linkMessage()     {}
func (*CompareAsk) linkMessage()     {}
func (*CompareAnswer) linkMessage()  {}

// SegmentPiece is the place where a piece of a segment belongs.
type SegmentPiece struct{ Slot, Offset uint64 }

// Bounds of the messages of a link. Anything longer is TooLarge to the sender and Corrupt to the receiver.
const (
	LinkTableBytesMax = 1 << 10
	LinkMembersMax    = 64
	LinkEndsMax       = 1 << 14
	LinkInfoBytesMax  = 2 << 20 // of a segment's description
	LinkFrameBytesMax = 32 << 20
	LinkPieceBytesMax = 128 << 10
)

// QueueFrame queues a log record. rec must not change until done is called, which happens once, also after an error; done may be nil, and must not call the link.
type QueueFrame func(r *Route, rec []byte, done func()) error

// Link is one side of a link. All methods may be called from many goroutines. Those that are documented not to wait may also be
// called under the caller's locks. Errors are Unavailable once the link has ended.
type Link interface {
	// Peer is the other server. Its Capabilities are those that both sides have.
	Peer() LinkHello
	// Send queues an urgent message; it does not wait. Nothing of m is kept. Errors: TooLarge, Throttled (the queue is full).
	Send(r *Route, m LinkMessage) error
	// Frames waits until there is room for n log records of so many bytes together, ctx ends the wait, and calls send then, which queues them as they are: so records
	// that wait need not be in memory yet. Room that send does not use is free again; beyond it a record is refused (Throttled). Errors are those of
	// send, TooLarge, Canceled, Unavailable.
	Frames(ctx context.Context, n, bytes int, send func(QueueFrame) error) error
	// TryFrame queues a log record without a wait: Throttled when there is no room.
	TryFrame(r *Route, rec []byte, done func()) error
	// Piece queues a piece of a segment, which is copied, once there is room. Errors are those of Frames.
	Piece(ctx context.Context, r *Route, at SegmentPiece, data []byte) error
	// Silence is how long ago anything was received; 0 while the handler is at work, since later messages wait for it.
	Silence() time.Duration
	// Close ends the link.
	Close(why string)
}

// Body is a frame or a piece that was received. Its bytes are valid until Done, which must be called once and gives the sender room for more.
type Body interface {
	Bytes() []byte
	Done()
}

// LinkHandler receives from links. Its methods are called one after another for a link and must not wait: while one runs,
// nothing else of the link is received.
type LinkHandler interface {
	// Linked reports a new link. An earlier one to the same server has ended and was reported as Unlinked.
	Linked(l Link)
	// Message passes an urgent message, which the handler owns.
	Message(l Link, r *Route, m LinkMessage)
	// Frame passes a log record. Nothing of r is kept, but its strings may be.
	Frame(l Link, r *Route, rec Body)
	// Piece passes a piece of a segment.
	Piece(l Link, r *Route, at SegmentPiece, data Body)
	// Silent reports that nothing was received for the time that links allow, or, with false, that messages arrive again. It is
	// called from another goroutine than the methods above.
	Silent(l Link, silent bool)
	// Unlinked reports that a link has ended, and why; it delivers nothing afterwards.
	Unlinked(l Link, why error)
}

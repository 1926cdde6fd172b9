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
// Urgent messages overtake frames, and frames overtake pieces of segments; within a class the order is kept. A link that ends loses
// what was on its way: the machines above it (storage/chain, storage/replica) send anew.

// LinkHello is what a server says of itself when a link begins.
type LinkHello struct {
	Server       string   // its id
	Boot         uint64   // of the process: another one at every start
	Store        [16]byte // its store directory
	Capabilities Capabilities
}

// Capabilities are what a build can do, a bit each. Of a link those count that both sides have.
type Capabilities uint64

const (
	// CanFreeze: reads frames of kind freeze (protocols/frame).
	CanFreeze Capabilities = 1 << 0
)

// Has reports whether all of c2 are there.
func (c Capabilities) Has(c2 Capabilities) bool { return c&c2 == c2 }

// Route says between which placements of a partition a message goes.
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
)

// Messages about segments (C45–C73). A slot is the offerer's number for one offer under way on the link.
type (
	// SegmentOffer offers a segment. Info is the description of it that its catalogue entry has, as JSON.
	SegmentOffer struct {
		Slot     uint64
		ID, Base point.SegmentID
		Major    bool
		Size     uint64
		Checksum uint64
		Ends     []point.EpochEnd
		Info     []byte
	}
	// SegmentAccept asks for the bytes from Offset on: what came before is kept from an earlier try.
	SegmentAccept struct{ Slot, Offset uint64 }
	// SegmentDecline says why the offer is not taken, and what the placement holds.
	SegmentDecline struct {
		Slot   uint64
		Reason DeclineReason
		Ends   []point.EpochEnd
	}
	// SegmentCommit says that all bytes were sent.
	SegmentCommit struct{ Slot uint64 }
	// SegmentAck says that the segment is durable, in the catalogue of the placement.
	SegmentAck struct {
		Slot uint64
		ID   point.SegmentID
	}
)

// DeclineReason is why a segment is not taken.
type DeclineReason uint8

// The reasons of the seed's SEGMENT protocol, and two more.
const (
	DeclineExists     DeclineReason = 1 // the placement holds it, or what it holds
	DeclineOverloaded DeclineReason = 2 // no slot is free: later
	DeclineInvalid    DeclineReason = 3 // it is not what the offer said
	DeclineInflight   DeclineReason = 4 // another server sends it just now
	DeclineOutOfOrder DeclineReason = 5 // its base is not known: send what is before it
	DeclineStaleEpoch DeclineReason = 6 // the sender's epoch was overtaken
	DeclineNoSpace    DeclineReason = 7
)

func (*ChainBegin) linkMessage()     {}
func (*ChainReport) linkMessage()    {}
func (*ChainPing) linkMessage()      {}
func (*ChainPong) linkMessage()      {}
func (*ChainRefuse) linkMessage()    {}
func (*SegmentOffer) linkMessage()   {}
func (*SegmentAccept) linkMessage()  {}
func (*SegmentDecline) linkMessage() {}
func (*SegmentCommit) linkMessage()  {}
func (*SegmentAck) linkMessage()     {}

// SegmentPiece says where a piece of a segment belongs.
type SegmentPiece struct{ Slot, Offset uint64 }

// Bounds of what travels on a link. What exceeds them is TooLarge to the sender and Corrupt to the receiver.
const (
	LinkTableBytesMax = 1 << 10
	LinkMembersMax    = 64
	LinkEndsMax       = 1 << 14
	LinkInfoBytesMax  = 2 << 20 // of a segment's description
	LinkFrameBytesMax = 32 << 20
	LinkPieceBytesMax = 128 << 10
)

// Link is one side of a link. All methods may be called from many goroutines, also under the caller's locks where they say that
// they do not wait. Errors are Unavailable once the link has ended.
type Link interface {
	// Peer is the other server. Its Capabilities are those that both sides have.
	Peer() LinkHello
	// Send queues an urgent message; it does not wait. Nothing of m is kept. Errors: TooLarge, Throttled (the queue is full).
	Send(r *Route, m LinkMessage) error
	// Frame queues a log record, as it is, once there is room for it; ctx ends the wait. rec must not change until done is called,
	// which happens once, also after an error; done may be nil, and must not call the link. Errors: TooLarge, Canceled, Unavailable.
	Frame(ctx context.Context, r *Route, rec []byte, done func()) error
	// TryFrame is Frame that does not wait: Throttled where there is no room.
	TryFrame(r *Route, rec []byte, done func()) error
	// Piece queues a piece of a segment, which is copied, once there is room for it. Errors as of Frame.
	Piece(ctx context.Context, r *Route, at SegmentPiece, data []byte) error
	// Close ends the link.
	Close(why string)
}

// Body is a frame or a piece that came. Its bytes are good until Done, which gives the sender room for more and must be called once.
type Body interface {
	Bytes() []byte
	Done()
}

// LinkHandler takes what comes on links. Its methods are called one after another for a link and must not wait: while one runs,
// nothing else of the link is received, and the other side takes it for silent.
type LinkHandler interface {
	// Linked says that a link is there; one to the same server from before has ended and been reported as Unlinked.
	Linked(l Link)
	// Message gives an urgent message; it is the handler's.
	Message(l Link, r *Route, m LinkMessage)
	// Frame gives a log record. Nothing of r is kept, but its strings may be.
	Frame(l Link, r *Route, rec Body)
	// Piece gives a piece of a segment.
	Piece(l Link, r *Route, at SegmentPiece, data Body)
	// Silent says that nothing came for the time that links allow, or, with false, that something came again. Called from another
	// goroutine than the methods above.
	Silent(l Link, silent bool)
	// Unlinked says that a link has ended, and why; nothing of it comes afterwards.
	Unlinked(l Link, why error)
}

package unload

import (
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Input is what happened.
type Input interface{ input() }

// Effect is a thing to do, in order.
type Effect interface{ effect() }

// Inputs.
type (
	// Begin: this server leads the partition, which is sealed for good: no server accepts rows for it any more. First: it led the partition before that too, so no slice
	// of an earlier leader can be on its way. Again: this process moved rows of it under this very epoch before, as where its lease lapsed and no other server acquired it: heirs accept those slices, so deletions wait for their time.
	Begin struct{ First, Again bool }
	// End: this server does not lead the partition any more. No Drop follows: the caller drops all slices that it has.
	End struct{}
	// Tick says that time went by.
	Tick struct{}
	// Read answers ReadSlice: rows of the times from its From to before To were read. To is its To, or less where there was more than fits. Rows 0: there are none.
	Read struct {
		ID    uint64
		To    point.Nanos
		Rows  int
		Bytes int64
	}
	// Unread answers ReadSlice where the rows could not be read.
	Unread struct{ ID uint64 }
	// Sent answers Send. OK: all rows are acked at level all, or are older than their table keeps. Otherwise some may be, and nothing of the slice is on its way any more.
	Sent struct {
		ID uint64
		OK bool
	}
	// Delete asks to remove rows from the partition. It may begin at Permit, and ends with Deleted. The caller numbers deletions. Before Begin and after End it
	// is not an input: the caller refuses it, since the server does not lead.
	Delete struct{ ID uint64 }
	// Deleted ends a deletion, also one that failed or was not permitted yet.
	Deleted struct{ ID uint64 }
	// Leaders answers FindLeaders: Servers hold the leases of the partitions to which rows of this one may go, by lease rows read at one moment after this leader
	// acquired its own. Known false: there are no such rows yet, or one of them cannot be read.
	Leaders struct {
		ID      uint64
		Known   bool
		Servers []topology.ServerID
	}
	// Answered answers EndSlices. OK: the server accepts no slice of an earlier epoch any more, and none is being inserted there. A server that does not know the
	// request, or does not answer, is not OK.
	Answered struct {
		ID     uint64
		Server topology.ServerID
		OK     bool
	}
)

func (Begin) input()    {}
func (End) input()      {}
func (Tick) input()     {}
func (Read) input()     {}
func (Unread) input()   {}
func (Sent) input()     {}
func (Delete) input()   {}
func (Deleted) input()  {}
func (Leaders) input()  {}
func (Answered) input() {}

// Effects.
type (
	// ReadSlice asks for the rows of the times from From to before To, from the first on, in at most Settings.SliceBytes but for the rows of the first time.
	ReadSlice struct {
		ID       uint64
		From, To point.Nanos
	}
	// Send asks to insert the rows of a slice that was read, and to give up after Settings.SendWithin.
	Send struct{ ID uint64 }
	// Drop forgets the rows of a slice.
	Drop struct{ ID uint64 }
	// Permit lets a deletion begin.
	Permit struct{ ID uint64 }
	// Finish says that the heirs have all rows: the partition may be removed from the map.
	Finish struct{}
	// FindLeaders asks which servers may accept slices. ID numbers the leaderships of this machine.
	FindLeaders struct{ ID uint64 }
	// EndSlices asks a server to refuse slices of earlier epochs of the partition from now on.
	EndSlices struct {
		ID     uint64
		Server topology.ServerID
	}
)

func (ReadSlice) effect()   {}
func (Send) effect()        {}
func (Drop) effect()        {}
func (Permit) effect()      {}
func (Finish) effect()      {}
func (FindLeaders) effect() {}
func (EndSlices) effect()   {}

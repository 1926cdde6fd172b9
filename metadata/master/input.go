package master

import (
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// Input is an input of a Work: the beginning, and the answers to its effects, each with the ID of the effect.
type Input interface{ input() }

// Begin starts the work.
type Begin struct{}

// RowsRead answers Read: the rows in the order of the keys. A row that does not exist has revision 0.
type RowsRead struct {
	ID   uint64
	Rows []coord.Row
	Err  error
}

// Committed answers Commit. An error leaves open whether it happened.
type Committed struct {
	ID       uint64
	Revision coord.Revision
	OK       bool
	Err      error
}

// Changed answers Change, ChangeMapServer and DropTable. Errors that are Invalid, Stale or NotFound mean that nothing was changed, others
// leave that open. Seq is the map's new sequence number.
type Changed struct {
	ID  uint64
	Seq uint64
	Err error
}

// Waited answers Wait.
type Waited struct{ ID uint64 }

// Lost reports that this process is no longer the master: nothing new is begun.
type Lost struct{}

// Expired reports that there is no more time: the work ends, and the call under way may or may not happen.
type Expired struct{}

func (Begin) input()     {}
func (RowsRead) input()  {}
func (Committed) input() {}
func (Changed) input()   {}
func (Waited) input()    {}
func (Lost) input()      {}
func (Expired) input()   {}

// Effect is one action that a Work asks for. At most one effect with an answer is under way at a time.
type Effect interface{ effect() }

// Read asks for rows of the coordination store, each as of after it was asked.
type Read struct {
	ID   uint64
	Keys []string
}

// Commit asks for one transaction of the coordination store.
type Commit struct {
	ID         uint64
	Conditions []coord.Condition
	Writes     []coord.Write
}

// Change proposes a transaction on a table's map, on no other map than the one of Seq.
type Change struct {
	ID    uint64
	Table string
	Seq   uint64
	Ops   []topology.Op
}

// ChangeMapServer changes a table's metadata servers.
type ChangeMapServer struct {
	ID        uint64
	Table     string
	MapServer MapServer
}

// DropTable ends the drop of a table that has no partitions any more.
type DropTable struct {
	ID    uint64
	Table string
}

// Wait asks for a pause.
type Wait struct {
	ID  uint64
	For time.Duration
}

// Report reports the outcome of a step.
type Report struct {
	Step Step
	Err  error // nil: it was carried out
}

// Ended is the last effect. Left are prohibitions that stay until they are older than fenceAge.
type Ended struct{ Left []string }

func (Read) effect()            {}
func (Commit) effect()          {}
func (Change) effect()          {}
func (ChangeMapServer) effect() {}
func (DropTable) effect()       {}
func (Wait) effect()            {}
func (Report) effect()          {}
func (Ended) effect()           {}

package mapstore

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/peer"
)

// steps keeps the ops of the newest transactions, so that followers that have a map are sent the changes since:
//
//	since ──ops──▶ txn ──ops──▶ txn ──ops──▶ asked for
//
// Transactions that were not committed lie there too, on branches of their own. It is not safe for concurrent use.
type steps struct {
	tables map[string]*tableSteps
	order  []stepKey // the oldest first
	bytes  int
}

type tableSteps struct {
	by map[peer.TxnID]step
}

// step is the ops of one transaction, or of several that came together.
type step struct {
	base peer.TxnID
	ops  [][]byte
}

func (s *step) bytes() (n int) {
	for _, ops := range s.ops {
		n += len(ops)
	}
	return n
}

type stepKey struct {
	table string
	txn   peer.TxnID
}

const (
	stepsBytesMax = 32 << 20 // of all tables
	stepCost      = 160      // of one, beside its ops
)

func newSteps() *steps { return &steps{tables: map[string]*tableSteps{}} }

// put remembers the ops that lead to txn from base. They are kept, and must not change.
func (s *steps) put(table string, txn, base peer.TxnID, ops ...[]byte) {
	x, t := step{base, ops}, s.tables[table]
	if x.bytes() > peer.StepsBytesMax || len(ops) > peer.StepsMax {
		return
	}
	if t == nil {
		t = &tableSteps{by: map[peer.TxnID]step{}}
		s.tables[table] = t
	}
	if _, here := t.by[txn]; here {
		return
	}
	t.by[txn] = x
	s.order = append(s.order, stepKey{table, txn})
	s.bytes += stepCost + x.bytes()
	for s.bytes > stepsBytesMax {
		s.forget(s.order[0])
		s.order = s.order[1:]
	}
}

func (s *steps) forget(k stepKey) {
	t := s.tables[k.table]
	x := t.by[k.txn]
	s.bytes -= stepCost + x.bytes()
	delete(t.by, k.txn)
	if len(t.by) == 0 {
		delete(s.tables, k.table)
	}
}

// since gives the ops of each transaction from one to another. false: not all are remembered, or they are too many
// or too long for an answer.
func (s *steps) since(table string, from, to peer.TxnID) (out [][]byte, ok bool) {
	t, n := s.tables[table], 0
	for to != from {
		if t == nil {
			return nil, false
		}
		x, here := t.by[to]
		if n += x.bytes(); !here || n > peer.StepsBytesMax || len(out)+len(x.ops) > peer.StepsMax {
			return nil, false
		}
		for _, ops := range slices.Backward(x.ops) {
			out = append(out, ops)
		}
		to = x.base
	}
	slices.Reverse(out)
	return out, true
}

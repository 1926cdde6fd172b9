package metafile

import (
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
)

type name struct {
	table string
	txn   peer.TxnID
}

// node is the entry under a name: a file, or the rest of a deleted one that others stand on.
type node struct {
	file  bool       // it has a head
	from  peer.TxnID // the node it stands on; zero: it is whole
	users int        // that stand on it
	steps int        // transactions since the whole map below
	bytes int        // of their ops
	alone bool       // in the former format: its ops lead from the whole map to it, and nothing can stand on it
}

// shelf is the catalogue's content as a graph: every file stands on another, down to a map that is whole.
//
//	root ◀── a ◀── b ◀── c ◀── d         deleted a, b: their links stay, without heads, for as long as c or d are there
//	                     └── tidied: c is whole now, a and b go with the next Delete of a file
//
// Invariant: users of a node is the number of nodes with it as from.
type shelf struct {
	nodes map[name]*node
	due   map[string]due // by table: the file that is to be made whole next
}

// due keeps the map in memory until Tidy writes it: reading it back would mean a walk over a thousand links.
type due struct {
	file name
	m    *topology.Map
}

// newShelf makes an empty shelf; List fills it from the catalogue, and Put and Delete keep it current.
func newShelf() shelf { return shelf{nodes: map[name]*node{}, due: map[string]due{}} }

func (s *shelf) node(n name) *node {
	x := s.nodes[n]
	if x == nil {
		x = &node{}
		s.nodes[n] = x
	}
	return x
}

// stand makes a node stand on another, or whole; it returns the nodes that are not needed any more.
// The new base is counted before the old one is left: if both are the same node, it must not be deleted in between.
func (s *shelf) stand(n name, on peer.TxnID, steps, bytes int) (gone []name) {
	x := s.node(n)
	old := x.from
	x.from, x.steps, x.bytes, x.alone = on, 0, 0, false
	if on != (peer.TxnID{}) {
		below := s.node(name{n.table, on})
		below.users++
		x.steps, x.bytes = below.steps+steps, below.bytes+bytes
	}
	if old != (peer.TxnID{}) {
		gone = s.leave(name{n.table, old})
	}
	return gone
}

// whole records that a file was made whole.
func (s *shelf) whole(n name) (gone []name) {
	steps, bytes := s.nodes[n].steps, s.nodes[n].bytes
	for k, x := range s.nodes { // those that stand on it are nearer to a whole map now
		if k != n && s.above(k, n) {
			x.steps, x.bytes = max(x.steps-steps, 1), max(x.bytes-bytes, 0)
		}
	}
	return s.stand(n, peer.TxnID{}, 0, 0)
}

// above reports whether a node stands on another, near or far.
func (s *shelf) above(n, on name) bool {
	if n.table != on.table {
		return false
	}
	for range linksMax {
		x := s.nodes[n]
		if x == nil || x.from == (peer.TxnID{}) {
			return false
		}
		if n = (name{n.table, x.from}); n == on {
			return true
		}
	}
	return false
}

// leave removes one user from a node; it returns the nodes that are not needed any more.
// An example: d stands on c, c on b, and b and c are deleted. When d goes, c has no user and no head, so it goes, and b after it.
func (s *shelf) leave(n name) (gone []name) {
	for {
		x := s.nodes[n]
		if x == nil {
			return gone
		}
		x.users--
		if x.file || x.users > 0 {
			return gone
		}
		delete(s.nodes, n)
		gone = append(gone, n)
		if x.from == (peer.TxnID{}) {
			return gone
		}
		n = name{n.table, x.from}
	}
}

// drop deletes a file; it returns the nodes that are not needed any more, it among them unless others stand on it.
func (s *shelf) drop(n name) (gone []name) {
	x := s.nodes[n]
	if x == nil {
		return []name{n}
	}
	if d := s.due[n.table]; d.file == n {
		delete(s.due, n.table)
	}
	x.file = false
	x.users++
	return s.leave(n)
}

// count computes how far each node is from the whole map below it, after all were found on the disk. ops are the transactions and
// bytes of each link.
func (s *shelf) count(ops map[name][2]int) {
	for n, x := range s.nodes {
		for at, k := x, n; at != nil && at.from != (peer.TxnID{}) && x.steps <= linksMax; {
			x.steps += max(ops[k][0], 1)
			x.bytes += ops[k][1]
			k = name{k.table, at.from}
			at = s.nodes[k]
		}
	}
}

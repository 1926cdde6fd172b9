package mapstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Newest is the newest METADATA file of a table that was committed, as far as the servers that answer can show, whichever the coordination
// store names.
type Newest struct {
	File    *peer.File // whole
	Map     *topology.Map
	Holders []topology.ServerID // sorted
	// Silent are the servers that did not answer: one of them may have a newer file.
	Silent []topology.ServerID
	// Before is the chain of transactions that led there, newest first, as far as it is kept.
	Before []Link
	// Witness is a server that acted by its map, or one that has a successor of the file: it was committed. Empty: it is on a majority, and
	// no server acted by it.
	Witness topology.ServerID
	// Rivals are other files of the same number, where there is no witness: one of them may be the committed one, but no server acted by it.
	Rivals []Candidate
	// Strays are servers that acted by a transaction which it does not follow from: of a named file only.
	Strays []Witness
	// Over is the highest number of the files that it is named instead of; 0: none of them shows that a newer one was committed.
	Over uint64
}

func (n Newest) String() string {
	if n.File == nil {
		return "none"
	}
	return fmt.Sprintf("transaction %d (%x) on %s, witness %q, rivals %v", n.File.Seq, n.File.Txn, listed(n.Holders), n.Witness, n.Rivals)
}

// Candidate is a file of a table that servers have.
type Candidate struct {
	Txn     peer.TxnID
	Seq     uint64
	Holders []topology.ServerID // sorted
	// Follower has a file that stands on this one, so that it was committed. Empty: none has.
	Follower topology.ServerID
}

func (c Candidate) String() string {
	return fmt.Sprintf("%x on %s", c.Txn, listed(c.Holders))
}

// Witness is a server that acted by the map of a transaction.
type Witness struct {
	Server topology.ServerID
	peer.Acted
}

// choose finds the committed file among all files of one sequence number, the highest first: the one that a server acted by, or that another stands on;
// else the only one that need servers hold. -1: none of them can be shown to be committed, look at those that they stand on. testified: every server
// answered, and said by what it acted; then a file that is on a majority, and that no server acted by, is passed over. Either it was not committed,
// and may have been ruled out, or no row depends on it. Errors are Unavailable: the committed file is on no server that answers, two histories are here, or two files are on need servers each.
//
//	number 8   A on s1 s2, B on s2 s3   both had a majority, and one of them was swapped in: s4 acted by map 8 of A
//	number 7   C on s1 s2 s3            A and B stand on it: it was committed
func choose(table string, need int, of []Candidate, witnesses []Witness, testified bool) (at int, by topology.ServerID, err error) {
	seq, silence := of[0].Seq, "start those servers that do not answer, which may have it, or name a file with --transaction"
	at = -1
	for i, c := range of {
		if c.Follower == "" {
			continue
		}
		if at >= 0 {
			return -1, "", fault.Errorf(fault.Unavailable, "table %q: other files stand on both %v and %v of transaction %d: two histories went on from a restore; name one with --transaction",
				table, of[at], c, seq)
		}
		at, by = i, c.Follower
	}
	for _, w := range witnesses {
		i := slices.IndexFunc(of, func(c Candidate) bool { return c.Txn == w.Txn })
		switch {
		case w.Seq < seq:
		case w.Seq > seq || i < 0:
			return -1, "", fault.Errorf(fault.Unavailable, "table %q: %s acted by the map of transaction %d (%x), whose file is on no server that answers: %s", table, w.Server, w.Seq, w.Txn, silence)
		case at >= 0 && at != i:
			return -1, "", fault.Errorf(fault.Unavailable, "table %q: %s has %v, and %s acted by %v of transaction %d: two histories went on from a restore; name one with --transaction",
				table, by, of[at], w.Server, of[i], seq)
		default:
			at, by = i, w.Server
		}
	}
	if at >= 0 || testified {
		return at, by, nil
	}
	for i, c := range of {
		switch {
		case len(c.Holders) < need:
		case at >= 0:
			return -1, "", fault.Errorf(fault.Unavailable, "table %q: of transaction %d, %v and %v are on %d servers each, and no server acted by either: %s", table, seq, of[at], c, need, silence)
		default:
			at = i
		}
	}
	return at, "", nil
}

// repairDepth bounds how far back files are looked for that enough servers hold.
const repairDepth = 64

// FindNewest asks servers for the newest committed file of a table. It is for a coordination store that was restored from an older backup.
// Every committed file is on a majority of the table's metadata servers (need), but so may be one that lost the race for its number, and of the
// committed one's servers some may be gone: so the files that servers acted by decide (choose). Errors are NotFound (no server has one), Unavailable
// (choose) and Corrupt.
func FindNewest(ctx context.Context, table string, servers []topology.ServerID, need int, peers func(topology.ServerID) (peer.Metadata, bool)) (Newest, error) {
	x := &survey{ctx: ctx, table: table, peers: peers}
	candidates := x.begin(servers)
	if len(candidates) == 0 {
		return Newest{Silent: x.silent}, fault.Errorf(fault.NotFound, "none of the %d servers that answer has a METADATA file of table %q", len(x.answered), table)
	}
	follower := map[peer.TxnID]topology.ServerID{}
	for range repairDepth {
		tip := newestOf(candidates)
		of := make([]Candidate, len(tip))
		for i, f := range tip {
			of[i] = Candidate{Txn: f.Txn, Seq: f.Seq, Holders: x.holders(f.Txn), Follower: follower[f.Txn]}
		}
		at, by, err := choose(table, need, of, x.witnesses, len(x.witnesses) == len(servers))
		switch {
		case err != nil:
			return Newest{Silent: x.silent}, err
		case at >= 0:
			n := Newest{File: tip[at], Holders: of[at].Holders, Silent: x.silent, Witness: by}
			switch {
			case by == "":
				n.Rivals = slices.Delete(of, at, at+1)
			case len(n.Holders) < need && len(x.silent) >= need: // a newer one would be on need servers
				return n, fault.Errorf(fault.Unavailable, "table %q: transaction %d was committed, %s shows it, but a newer one may be on the servers that do not answer: start %s", table, tip[at].Seq, by, listed(x.silent))
			}
			if n, err = x.read(n); err == nil && len(n.Strays) > 0 {
				w := n.Strays[0]
				err = fault.Errorf(fault.Unavailable, "table %q: %s acted by transaction %d (%x), and %v of transaction %d does not follow from it: two histories went on from a restore; name one with --transaction",
					table, w.Server, w.Seq, w.Txn, of[at], n.File.Seq)
			}
			return n, err
		}
		for i, f := range tip { // the base of each was committed
			delete(candidates, f.Txn)
			if base := x.file(f.Base); base != nil && f.Base != f.Txn {
				candidates[base.Txn], follower[base.Txn] = base, of[i].Holders[0]
			}
		}
		if len(candidates) == 0 {
			break
		}
	}
	return Newest{Silent: x.silent}, fault.Errorf(fault.Unavailable, "table %q: no METADATA file is on %d of its servers; these do not answer: %s", table, need, listed(x.silent))
}

// FindNamed finds the file of a transaction that a person named. Errors are NotFound and Corrupt.
func FindNamed(ctx context.Context, table string, servers []topology.ServerID, txn peer.TxnID, peers func(topology.ServerID) (peer.Metadata, bool)) (Newest, error) {
	x := &survey{ctx: ctx, table: table, peers: peers}
	candidates := x.begin(servers)
	n := Newest{File: x.file(txn), Silent: x.silent}
	if n.File == nil {
		return n, fault.Errorf(fault.NotFound, "table %q: transaction %x is on no server that answers; these do not: %s", table, txn, listed(x.silent))
	}
	n.Holders = x.holders(txn)
	n, err := x.read(n)
	for _, w := range n.Strays {
		n.Over = max(n.Over, w.Seq)
	}
	for _, f := range candidates {
		if f.Seq > n.File.Seq+1 {
			n.Over = max(n.Over, f.Seq)
		}
	}
	return n, err
}

// survey asks the servers of a table.
type survey struct {
	ctx       context.Context
	table     string
	peers     func(topology.ServerID) (peer.Metadata, bool)
	answered  []topology.ServerID
	silent    []topology.ServerID
	witnesses []Witness
}

// begin asks all for their newest files, and for the transactions they acted by.
func (x *survey) begin(servers []topology.ServerID) map[peer.TxnID]*peer.File {
	candidates := map[peer.TxnID]*peer.File{}
	for _, s := range slices.Sorted(slices.Values(servers)) {
		f, err := fetchOf(x.ctx, x.peers, s, peer.FileQuery{Table: x.table, Acted: true})
		switch {
		case err == nil:
			x.answered = append(x.answered, s)
			if f.Acted.Txn != (peer.TxnID{}) {
				x.witnesses = append(x.witnesses, Witness{s, f.Acted})
			}
			if f.Txn != (peer.TxnID{}) {
				candidates[f.Txn] = f
			}
		case fault.Is(err, fault.NotFound):
			x.answered = append(x.answered, s)
		default:
			x.silent = append(x.silent, s)
		}
	}
	for _, w := range x.witnesses { // it may not be the newest of any server
		if f := x.file(w.Txn); f != nil {
			candidates[f.Txn] = f
		}
	}
	return candidates
}

// holders returns the servers that have a file.
func (x *survey) holders(txn peer.TxnID) (holders []topology.ServerID) {
	for _, s := range x.answered {
		if _, err := fetchOf(x.ctx, x.peers, s, peer.FileQuery{Table: x.table, Txn: txn, Since: txn}); err == nil {
			holders = append(holders, s)
		}
	}
	return holders
}

// file fetches a file from any server that has it; nil: none does.
func (x *survey) file(txn peer.TxnID) *peer.File {
	for _, s := range x.answered {
		if f, err := fetchOf(x.ctx, x.peers, s, peer.FileQuery{Table: x.table, Txn: txn}); err == nil {
			return f
		}
	}
	return nil
}

// read fetches the map of a file, and the steps that led to it.
func (x *survey) read(n Newest) (Newest, error) {
	m, err := Decode(n.File)
	if err != nil {
		return n, err
	}
	n.Map = m
	n.Before = []Link{{Txn: n.File.Txn, Base: n.File.Base, Seq: n.File.Seq}}
	for last := n.Before[0]; len(n.Before) < repairDepth; {
		at := slices.IndexFunc(n.Holders, func(s topology.ServerID) bool {
			f, err := fetchOf(x.ctx, x.peers, s, peer.FileQuery{Table: m.Table, Txn: last.Base, Since: last.Base})
			if err == nil && f.Seq < last.Seq {
				last = Link{Txn: f.Txn, Base: f.Base, Seq: f.Seq}
				return true
			}
			return false
		})
		if at < 0 {
			break
		}
		n.Before = append(n.Before, last)
	}
	for _, w := range x.witnesses {
		if follows, known := n.Follows(Row{Txn: w.Txn, Seq: w.Seq}); known && !follows || w.Seq > n.File.Seq {
			n.Strays = append(n.Strays, w)
		}
	}
	return n, nil
}

// Row is the table's row that names the file, the successor of old. Proposals made in old's round are ruled out.
func (n Newest) Row(old Row) Row {
	holders := n.Holders[:min(len(n.Holders), ServersMax)]
	r := Row{Txn: n.File.Txn, Seq: n.File.Seq, Servers: holders, Round: old.Round + 1, Begun: min(old.Begun, n.File.Seq)}
	if n.Over > r.Seq {
		r.Over = n.Over
	}
	return r
}

// Follows reports whether the newest file follows from a transaction; known is false where the chain is not kept as far back.
func (n Newest) Follows(from Row) (follows, known bool) {
	for _, l := range n.Before {
		if l.Seq <= from.Seq {
			return l.Txn == from.Txn, l.Seq == from.Seq
		}
		if l.Base == from.Txn {
			return true, true
		}
	}
	return false, false
}

// newestOf gives the files with the highest number, in order.
func newestOf(files map[peer.TxnID]*peer.File) (out []*peer.File) {
	for _, f := range files {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b *peer.File) int {
		return cmp.Or(cmp.Compare(b.Seq, a.Seq), slices.Compare(a.Txn[:], b.Txn[:]))
	})
	return slices.DeleteFunc(out, func(f *peer.File) bool { return f.Seq < out[0].Seq })
}

func fetchOf(ctx context.Context, peers func(topology.ServerID) (peer.Metadata, bool), s topology.ServerID, q peer.FileQuery) (*peer.File, error) {
	p, ok := peers(s)
	if !ok {
		return nil, fault.Errorf(fault.Unavailable, "%s is not known or not connected", s)
	}
	f, err := p.Fetch(ctx, &q)
	if err == nil && (f.Table != q.Table || q.Txn != (peer.TxnID{}) && f.Txn != q.Txn) {
		return nil, fault.Errorf(fault.Corrupt, "%s gave another file than was asked for", s)
	}
	return f, err
}

func listed(servers []topology.ServerID) string {
	if len(servers) == 0 {
		return "none"
	}
	var names []string
	for _, s := range servers {
		names = append(names, fmt.Sprint(s))
	}
	return strings.Join(names, " ")
}

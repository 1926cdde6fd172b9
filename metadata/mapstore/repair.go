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

// Newest is the newest METADATA file of a table that enough servers hold, whichever the coordination store names.
type Newest struct {
	File    *peer.File // whole
	Map     *topology.Map
	Holders []topology.ServerID // sorted
	// Silent are the servers that did not answer: one of them may have a newer file.
	Silent []topology.ServerID
	// Before is the chain of transactions that led there, newest first, as far as it is kept.
	Before []Link
}

// repairDepth bounds how far back files are looked for that enough servers hold.
const repairDepth = 64

// FindNewest asks servers for the newest file of a table that at least need of them hold. It is for a coordination store that was
// restored from an older backup: every committed file is on a majority of the table's metadata servers. A file that was not
// committed may be found too; its change was neither acked nor refused for good. Errors are NotFound (no server has one), Unavailable
// (none is on so many servers, or two different ones of the same number are) and Corrupt.
func FindNewest(ctx context.Context, table string, servers []topology.ServerID, need int, peers func(topology.ServerID) (peer.Metadata, bool)) (Newest, error) {
	n := Newest{}
	var answered []topology.ServerID
	candidates := map[peer.TxnID]*peer.File{}
	for _, s := range slices.Sorted(slices.Values(servers)) {
		f, err := fetchOf(ctx, peers, s, peer.FileQuery{Table: table})
		switch {
		case err == nil:
			candidates[f.Txn] = f
			answered = append(answered, s)
		case fault.Is(err, fault.NotFound):
			answered = append(answered, s)
		default:
			n.Silent = append(n.Silent, s)
		}
	}
	if len(candidates) == 0 {
		return n, fault.Errorf(fault.NotFound, "none of the %d servers that answer has a METADATA file of table %q", len(answered), table)
	}
	for range repairDepth {
		tip := newestOf(candidates)
		var found []Newest
		for _, f := range tip {
			c := Newest{File: f, Silent: n.Silent}
			for _, s := range answered {
				if _, err := fetchOf(ctx, peers, s, peer.FileQuery{Table: table, Txn: f.Txn, Since: f.Txn}); err == nil {
					c.Holders = append(c.Holders, s)
				}
			}
			if len(c.Holders) >= need {
				found = append(found, c)
			}
		}
		switch {
		case len(found) > 1:
			return n, fault.Errorf(fault.Unavailable, "table %q: %d different files of transaction %d are on %d servers each: start those that do not answer (%s), which may tell",
				table, len(found), tip[0].Seq, need, listed(n.Silent))
		case len(found) == 1:
			return found[0].read(ctx, peers)
		}
		for _, f := range tip { // the base of each was committed
			delete(candidates, f.Txn)
			for _, s := range answered {
				if base, err := fetchOf(ctx, peers, s, peer.FileQuery{Table: table, Txn: f.Base}); err == nil && f.Base != f.Txn {
					candidates[base.Txn] = base
					break
				}
			}
		}
		if len(candidates) == 0 {
			break
		}
	}
	return n, fault.Errorf(fault.Unavailable, "table %q: no METADATA file is on %d of its servers; these do not answer: %s", table, need, listed(n.Silent))
}

// read fetches the map of a file, and the steps that led to it.
func (n Newest) read(ctx context.Context, peers func(topology.ServerID) (peer.Metadata, bool)) (Newest, error) {
	m, err := Decode(n.File)
	if err != nil {
		return n, err
	}
	n.Map = m
	n.Before = []Link{{Txn: n.File.Txn, Base: n.File.Base, Seq: n.File.Seq}}
	for last := n.Before[0]; len(n.Before) < repairDepth; {
		at := slices.IndexFunc(n.Holders, func(s topology.ServerID) bool {
			f, err := fetchOf(ctx, peers, s, peer.FileQuery{Table: m.Table, Txn: last.Base, Since: last.Base})
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
	return n, nil
}

// Row is the table's row that names the file, the successor of old. Proposals made in old's round are ruled out.
func (n Newest) Row(old Row) Row {
	holders := n.Holders[:min(len(n.Holders), ServersMax)]
	return Row{Txn: n.File.Txn, Seq: n.File.Seq, Servers: holders, Round: old.Round + 1}
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

package master

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// MetadataServers is how many servers should keep a table's METADATA files, where there are as many.
const MetadataServers = 3

// MapServers changes which servers keep a table's METADATA files; mapstore.Coordinator implements it. Errors are as there.
type MapServers interface {
	// Join gives a server the committed file, then a place in the table's list (C11).
	Join(ctx context.Context, table string, s topology.ServerID) error
	// Remove removes a server from the list, once a majority of the others has the committed file (C12).
	Remove(ctx context.Context, table string, s topology.ServerID) error
}

// MapServer names the server that should join or leave a table's list of metadata servers.
type MapServer struct {
	Server topology.ServerID
	Leave  bool
}

// FillMetadata notes the metadata servers of each table. Errors are the store's. A row that cannot be read gives no
// servers: nothing is decided about its table.
func (s *State) FillMetadata(ctx context.Context, store coord.Store) error {
	rows, _, err := store.List(ctx, mapstore.Prefix)
	if err == nil {
		s.MetadataBy(rows)
	}
	return err
}

// MetadataBy is FillMetadata with the rows of all tables.
func (s *State) MetadataBy(rows []coord.Row) {
	s.Metadata = map[string][]topology.ServerID{}
	for _, row := range rows {
		if r, err := mapstore.DecodeRow(row); err == nil && !r.Dropped {
			s.Metadata[mapstore.TableOf(row.Key)] = r.Servers
		}
	}
}

// metadata gives every table its metadata servers: three, or as many as may be used, apart by host and zone where that
// is possible. One step per table and round:
//
//	fewer good ones than wanted    another joins
//	two on one host, a free host   another joins
//	one with two tables more       another joins
//	a bad one, enough good ones    the bad one leaves
//	more good ones than wanted     one leaves: first one that shares a host or a zone, then the one that keeps the most tables
//
// A server is bad if it is drained, silent for DeadAfter, or not registered. Joining comes first, and a server leaves only while the live
// ones are a majority of those that stay. A server with a new directory is not bad: it fetches its missing files by itself (C14).
func (p *planner) metadata() {
	p.kept = map[topology.ServerID]int{}
	for _, servers := range p.Metadata {
		for _, s := range servers {
			p.kept[s]++
		}
	}
	massive := p.manySilent()
	for _, table := range sortedKeys(p.Metadata) {
		p.keepTable(table, p.Metadata[table], massive)
	}
}

func (p *planner) keepTable(table string, now []topology.ServerID, massive bool) {
	var good, bad []topology.ServerID
	alive := 0
	for _, s := range now {
		if p.bad(s, p.set.DeadAfter) {
			bad = append(bad, s)
		} else {
			good = append(good, s)
		}
		if st := p.servers[s]; st != nil && st.Live {
			alive++
		}
	}
	if alive < len(now)/2+1 {
		p.alarm(table, 0, "its map cannot be changed", "of its %d metadata servers (%s) only %d answer, a majority is needed", len(now), list(now), alive)
	}
	usable := 0
	for _, st := range p.order {
		if st.usable() || slices.Contains(good, st.ID) {
			usable++
		}
	}
	wanted := min(MetadataServers, usable)
	if p.keeping >= p.set.MovesMax {
		return
	}
	if why := p.wantsKeeper(table, good, bad, wanted); why != "" && len(now) < mapstore.ServersMax {
		if st, ok := p.chooseKeeper(table, good, now, len(good) >= wanted); ok {
			p.keep(table, MapServer{Server: st.ID}, why)
			return
		}
	}
	if gone, why := p.unwanted(good, bad, wanted); gone != "" && !massive {
		stays := slices.DeleteFunc(slices.Clone(now), func(s topology.ServerID) bool { return s == gone })
		if p.livingAmong(stays) >= len(stays)/2+1 {
			p.keep(table, MapServer{Server: gone, Leave: true}, why)
		}
	}
}

func (p *planner) keep(table string, k MapServer, why string) {
	p.keeping++
	what := fmt.Sprintf("let %s keep its METADATA files", k.Server)
	by := 1
	if k.Leave {
		what, by = fmt.Sprintf("take %s off its metadata servers", k.Server), -1
	}
	p.kept[k.Server] += by
	p.add(Step{Kind: Metadata, Table: table, MapServer: &k, What: what, Why: why})
}

// wantsKeeper returns the reason for another server to keep a table's files; "": none should.
func (p *planner) wantsKeeper(table string, good, bad []topology.ServerID, wanted int) string {
	switch {
	case len(good) < wanted && len(bad) > 0:
		return p.state(bad[0])
	case len(good) < wanted:
		return fmt.Sprintf("%d of %d keep them", len(good), wanted)
	case len(good) > wanted || len(bad) > 0: // first a server leaves
		return ""
	}
	best, ok := p.chooseKeeper(table, good, good, true)
	if !ok {
		return ""
	}
	worst := p.worstKeeper(good)
	others := slices.DeleteFunc(slices.Clone(good), func(s topology.ServerID) bool { return s == worst })
	why := fmt.Sprintf("%s keeps those of %d tables, %s of %d", worst, p.kept[worst], best.ID, p.kept[best.ID])
	switch before, after := p.together(worst, others), p.together(best.ID, others); {
	case after < before:
		why = fmt.Sprintf("%s shares its host or zone with another", worst)
	case after > before || p.kept[best.ID]+2 > p.kept[worst]:
		return ""
	}
	p.kept[worst]-- // it leaves with the next round
	return why
}

// unwanted returns the server that should leave, and the reason; "": no server.
func (p *planner) unwanted(good, bad []topology.ServerID, wanted int) (s topology.ServerID, why string) {
	switch {
	case len(good) < wanted:
		return "", ""
	case len(bad) > 0:
		return bad[0], p.state(bad[0])
	case len(good) > wanted:
		return p.worstKeeper(good), fmt.Sprintf("%d keep them, %d are enough", len(good), wanted)
	}
	return "", ""
}

// worstKeeper returns the server that should leave first: one that shares a host or zone with others, then the one that keeps the most tables.
func (p *planner) worstKeeper(good []topology.ServerID) topology.ServerID {
	return slices.MaxFunc(good, func(a, b topology.ServerID) int {
		return cmp.Or(cmp.Compare(p.together(a, good), p.together(b, good)), cmp.Compare(p.kept[a], p.kept[b]), cmp.Compare(a, b))
	})
}

// together counts the servers, besides s itself, that share its host, and with less weight those in its zone.
func (p *planner) together(s topology.ServerID, among []topology.ServerID) (n int) {
	st := p.servers[s]
	for _, id := range among {
		o := p.servers[id]
		switch {
		case id == s || st == nil || o == nil:
		case o.Host == st.Host:
			n += mapstore.ServersMax + 1
		case o.Zone == st.Zone:
			n++
		}
	}
	return n
}

// chooseKeeper returns the best additional server for a table's files: apart from those that keep them, with the fewest tables.
func (p *planner) chooseKeeper(table string, good, not []topology.ServerID, settled bool) (best *standing, ok bool) {
	better := func(a, b *standing) int {
		return cmp.Or(cmp.Compare(p.together(a.ID, good), p.together(b.ID, good)), cmp.Compare(p.kept[a.ID], p.kept[b.ID]),
			cmp.Compare(rendezvous(a.ID, table, "0"), rendezvous(b.ID, table, "0")), cmp.Compare(a.ID, b.ID))
	}
	for _, st := range p.order {
		if !st.usable() || slices.Contains(not, st.ID) || settled && st.For < p.set.SettleAfter {
			continue
		}
		if best == nil || better(st, best) < 0 {
			best = st
		}
	}
	return best, best != nil
}

func (p *planner) livingAmong(servers []topology.ServerID) (n int) {
	for _, s := range servers {
		if st := p.servers[s]; st != nil && st.Live {
			n++
		}
	}
	return n
}

package fanout

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// A gateway that is cut off from the coordination store reads by its newest cached map (C127). If that may lack partitions of the asked
// range (follow.Doubt), it asks the table's metadata servers for a newer map, and uses that one. A remaining doubt
// becomes a warning, or the answer is refused, as the request asks.

// picture is a table's map for one try, and the part of the request that it may lack.
type picture struct {
	m     *topology.Map
	doubt error // nil: nothing; Unavailable
}

// look returns the newest map, after comparing it with those of metadata servers where that may help; once for each request.
// Errors are NotFound, and Unavailable where it cannot find out whether the table was made since.
func (s *Source) look(ctx context.Context, r *request) (picture, error) {
	m, err := s.known(r.table)
	if err != nil {
		return picture{}, err
	}
	doubt := s.doubt(r, m)
	if doubt == nil {
		return picture{m: m}, nil
	}
	if !r.probed {
		r.probed = true
		s.probe(ctx, r, m)
		if m, err = s.known(r.table); err != nil {
			return picture{}, err
		}
		doubt = s.doubt(r, m)
	}
	return picture{m, doubt}, nil
}

// known returns the newest cached map of a table.
func (s *Source) known(table string) (*topology.Map, error) {
	if m, ok := s.deps.Tables.Get(table); ok {
		return m, nil
	}
	if age := s.age(table); age >= follow.DoubtAge {
		return nil, fault.Errorf(fault.Unavailable, "table %q is not known here, and may have been made since %s, when the coordination store last answered this gateway",
			table, ago(age))
	}
	return nil, fault.Errorf(fault.NotFound, "table %q does not exist", table)
}

// age is for how long a newer map of the table may have been missed; 0: the map is the newest.
func (s *Source) age(table string) time.Duration {
	if s.deps.Age == nil {
		return 0
	}
	return s.deps.Age(table)
}

func ago(age time.Duration) string {
	return time.Now().Add(-age).UTC().Round(time.Second).Format(time.RFC3339)
}

// doubt is the error for the part of the request's range that the map may lack.
func (s *Source) doubt(r *request, m *topology.Map) error {
	age := s.age(r.table)
	from, to, ok := follow.Doubt(m, r.lo, r.hi, s.deps.Clock.Nanos(), age)
	if !ok || r.partitions != nil {
		return nil
	}
	return s.lacks(r.table, from, to)
}

// lacks is the error that rows may be missing.
func (s *Source) lacks(table string, from, to point.Nanos) error {
	return fault.Errorf(fault.Unavailable, "rows of table %q from %s to %s may be missing: the coordination store has not answered this gateway since %s, and others may have made partitions there that it does not know, or lead some that had no rows",
		table, instantOf(from), instantOf(to), ago(s.age(table)))
}

// instantOf formats a time for messages; the ends of time by name.
func instantOf(t point.Nanos) string {
	switch t {
	case math.MinInt64:
		return "the beginning"
	case math.MaxInt64:
		return "the end"
	}
	return time.Unix(0, t).UTC().Format(time.RFC3339)
}

// probeMax bounds the wait for metadata servers that are asked whether there is a newer map.
const probeMax = 500 * time.Millisecond

// probe asks the metadata servers of a table whether they have partitions of the range that m does not have, and uses their map then. It
// waits for a majority: a transaction is on one before it is committed.
func (s *Source) probe(ctx context.Context, r *request, m *topology.Map) {
	at, ok := s.deps.Tables.Newest(r.table)
	if !ok {
		return
	}
	s.metrics.probes.Inc()
	ctx, cancel := context.WithTimeout(ctx, probeMax)
	defer cancel()
	answers := make(chan error, len(at.Servers))
	for _, id := range at.Servers {
		go func() { answers <- s.newer(ctx, topology.ServerID(id), r, m) }()
	}
	answered := 0
	for range at.Servers {
		err := <-answers
		if newest, ok := peer.MapOf(err); ok && newest.Seq > m.Seq {
			s.follow.Maps.Refresh(ctx, r.table, m, newest)
			return
		}
		if err == nil {
			answered++
		}
		if answered > len(at.Servers)/2 || ctx.Err() != nil {
			return
		}
	}
}

// newer asks one server; the error is Stale if it has a newer map, and names that.
func (s *Source) newer(ctx context.Context, id topology.ServerID, r *request, m *topology.Map) error {
	st, ok := s.deps.Servers.Server(id)
	if !ok {
		return fault.Errorf(fault.Unavailable, "storage server %q is not known here", id)
	}
	_, _, err := st.LabelNames(ctx, &peer.Select{Table: r.table, Partitions: []point.PartitionID{}, Lo: r.lo, Hi: r.hi, MapNext: m.NextID}, 1)
	return err
}

// refuses reports whether the asker prefers no answer to a doubtful one.
func (s *Source) refuses(ctx context.Context, r *request) bool {
	whole, said := query.Whole(ctx)
	return r.whole || whole || !said && s.settings.RefusePartial
}

// warnServers warns, where all servers are asked, that there may be others by now.
func (s *Source) warnServers(ctx context.Context, table string) error {
	age := s.age(table)
	if age < follow.DoubtAge {
		return nil
	}
	text := fmt.Sprintf("storage servers that came since %s are not asked: the coordination store has not answered this gateway since", ago(age))
	if s.refuses(ctx, &request{}) {
		return fault.Errorf(fault.Unavailable, "%s", text)
	}
	query.Warn(ctx, text)
	return nil
}

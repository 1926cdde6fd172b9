package process

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/cmd/spillway/figures"
	"github.com/spillwaydb/spillway/cmd/spillway/findings"
	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/intake/kafka"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// statusTimeout bounds the waits of the status page: an incomplete page is better than one that hangs.
const statusTimeout = 2 * time.Second

// status returns the state of tables, servers and topics; describe of the gatewayDeps adds that of a cluster. An identity
// that may not read every table sees its own, but no servers, topics and problems, which would reveal other tables.
func (d *door) status(ctx context.Context, a ui.Ask) ui.Status {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	who := access.From(ctx)
	s := ui.Status{Version: d.cfg.Build.Version, Role: d.role, Now: d.behind.clock.Now(), CoordinationAge: -1, Whole: who.MayAll(access.Read), Tables: []ui.Table{}}
	var causes findings.Problems
	all := d.sizes(ctx, a.Table, who)
	for _, f := range all {
		if f.err != nil {
			causes.Add("The sizes of table %s are not known: "+f.err.Error(), f.of.Table)
		}
		t := tableStatus(f, s.Now)
		for _, text := range f.lacks {
			if t.Unknown > 0 { // else another copy's are known
				causes.Add(findings.SomeSizes+" of table %s are not known: "+text, f.of.Table)
			}
		}
		for i := range t.Partitions {
			causes.AddPartition(t.Name, &t.Partitions[i])
		}
		if f.stats != nil {
			if hot := figures.Uneven(f.of, figures.RowsOf(f.stats)); hot != nil {
				causes.Add("Of table %s "+hot.String()+"; `spillway doctor` names the series that lie there.", t.Name)
			}
			if text := administration.StagedProblem(f.stats.Staged, s.Now); text != "" {
				causes.Add("Rows of table %s wait in staging for the leaders of their partitions; they are read, and go there by themselves: "+text+".", t.Name)
			}
		}
		if a.Forecast && d.behind.coord != nil {
			var err error
			if t.Forecast, err = d.forecasts(ctx, f); err != nil {
				causes.Add("The forecast of table %s is not known: "+err.Error(), t.Name)
			}
			t.Target = int64(d.cfg.Tables.SplitBytes)
		}
		s.Tables = append(s.Tables, t)
	}
	s.Problems = causes.Texts()
	if d.kafka != nil {
		s.Topics = d.rates.topics(s.Now, d.kafka.Status())
	}
	if d.behind.health != nil {
		if err := d.behind.health(); err != nil {
			s.Problems = append(s.Problems, "The store is fenced: "+err.Error())
		}
	}
	if well, _ := d.reloads.last(); !well {
		s.Problems = append(s.Problems, "The settings could not be read again: those in force stay, and the process would not start with its files as they are.")
	}
	if text := d.behind.clock.Problem(); text != "" {
		s.Problems = append(s.Problems, text)
	}
	if d.behind.describe != nil {
		d.behind.describe(ctx, &s)
	}
	if a.Table == "" && s.Whole {
		d.growth.Count(&s)
	}
	addSmear(&s, all)
	if !a.Partitions {
		for i := range s.Tables {
			s.Tables[i].Partitions = nil
		}
	}
	if !s.Whole {
		s.Servers, s.Topics, s.Problems = []ui.Server{}, nil, nil
	}
	return s
}

// sizesParallel bounds how many tables are asked about at once.
const sizesParallel = 8

// found is the result for one table.
type found struct {
	of    *topology.Map
	stats *peer.Stats // nil: nothing
	lacks []string    // why the sizes are incomplete
	err   error
}

// sizes returns the sizes of the tables that an identity may read; only: "" or the one table to ask about.
func (d *door) sizes(ctx context.Context, only string, who *access.Identity) []found {
	var all []found
	for _, name := range d.behind.tables.Names() {
		if m, ok := d.behind.tables.Get(name); ok && who.May(access.Read, name) && (only == "" || only == name) {
			all = append(all, found{of: m})
		}
	}
	var g errgroup.Group
	g.SetLimit(sizesParallel)
	for i := range all {
		g.Go(func() error {
			f := &all[i]
			ctx, warnings := query.WithWarnings(query.WithPartial(ctx))
			f.stats, f.err = d.behind.source.Stats(ctx, f.of.Table, 0)
			f.lacks = warnings.Texts()
			return nil
		})
	}
	_ = g.Wait() // errors are in all
	return all
}

func tableStatus(f found, now time.Time) ui.Table {
	sizes, moving := map[point.PartitionID]peer.PartitionStats{}, map[point.PartitionID][]peer.Transfer{}
	if f.stats != nil {
		for _, p := range f.stats.ByPartition {
			sizes[p.ID] = p
			moving[p.ID] = append(moving[p.ID], p.Transfers...)
		}
	}
	m := f.of
	t := ui.Table{Name: m.Table, Seq: m.Seq, Retention: m.Config.Retention, Width: m.Config.PartitionWidth, Replicas: m.Config.Replicas, MinInSync: m.Config.MinInSync(), Partitions: []ui.Partition{}}
	if f.stats != nil {
		for _, x := range f.stats.Staged {
			t.Staged = append(t.Staged, ui.Staged{Server: x.Server, Rows: x.Rows, Bytes: x.Bytes, Later: x.Later, Sole: x.Sole, Oldest: figures.TimeOf(x.Oldest), Overdue: figures.TimeOf(x.Overdue)})
		}
	}
	var sum sizeSum
	for _, p := range m.Overlapping(math.MinInt64, math.MaxInt64) {
		one := ui.Partition{
			ID: uint64(p.ID), From: time.Unix(0, p.TimeLo).UTC(), To: time.Unix(0, p.TimeHi).UTC(),
			RingLo: ringShare(p.PointLo), RingHi: 1, State: "live",
		}
		if p.PointHi != 0 {
			one.RingHi = ringShare(p.PointHi)
		}
		for _, pl := range p.Placements {
			one.Servers = append(one.Servers, string(pl.Server))
		}
		if f.stats != nil {
			one.Transfers = figures.Transfers(p, "", moving[p.ID], now)
		}
		// A server that answered and does not name a partition has no rows there; one that did not may have.
		if size, held := sizes[p.ID]; held || f.err == nil && len(f.lacks) == 0 {
			one.Rows, one.Bytes, one.Damaged, one.Unflushed, one.Differs = &size.Rows, &size.Bytes, size.Damaged, size.Unflushed, size.Differs
			sum.add(size)
		} else {
			t.Unknown++
		}
		t.Partitions = append(t.Partitions, one)
	}
	t.Count = len(t.Partitions)
	if t.Unknown == 0 && f.err == nil {
		t.Rows, t.Bytes, t.Oldest, t.Newest = &sum.rows, &sum.bytes, sum.at(sum.oldest), sum.at(sum.newest)
	}
	return t
}

// sizeSum adds up partitions.
type sizeSum struct {
	rows, bytes    uint64
	oldest, newest point.Nanos
	timed          bool // they are known
}

func (s *sizeSum) add(p peer.PartitionStats) {
	if p.Rows > 0 && (p.MinTime != 0 || p.MaxTime != 0) { // both 0: its rows wait to be applied
		if !s.timed {
			s.oldest, s.newest, s.timed = p.MinTime, p.MaxTime, true
		}
		s.oldest, s.newest = min(s.oldest, p.MinTime), max(s.newest, p.MaxTime)
	}
	s.rows += p.Rows
	s.bytes += p.Bytes
}

// at returns a time of a row; nil: there is no row, or its time is not known.
func (s *sizeSum) at(t point.Nanos) *time.Time {
	if !s.timed {
		return nil
	}
	at := time.Unix(0, t).UTC()
	return &at
}

func ringShare(point uint64) float64 { return figures.RingShare(point) }

// rates holds the previous counts, for the growth per second.
type rates struct {
	mu   sync.Mutex
	at   time.Time
	rows map[string]uint64
}

func (r *rates) topics(now time.Time, s kafka.Status) []ui.Topic {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []ui.Topic
	counted := map[string]uint64{}
	for _, c := range s.Clusters {
		for _, p := range c.Partitions {
			key := fmt.Sprint(c.Name, "/", c.Group, "/", p.Topic, "/", p.Partition)
			counted[key] = p.Rows
			t := ui.Topic{Cluster: c.Name, Group: c.Group, Topic: p.Topic, Partition: p.Partition, Lag: p.Lag, Committed: p.Committed,
				Rows: p.Rows, Bytes: p.Bytes, Poison: p.Poison, Paused: p.Paused, LastError: c.LastError}
			if was, ok := r.rows[key]; ok && p.Rows >= was && now.After(r.at) {
				t.RowsPerSecond = float64(p.Rows-was) / now.Sub(r.at).Seconds()
			}
			out = append(out, t)
		}
	}
	r.at, r.rows = now, counted
	return out
}

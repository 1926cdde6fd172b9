package main

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/intake/kafka"
	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// statusTimeout bounds what the status page waits for: a page that says what is known beats one that hangs.
const statusTimeout = 2 * time.Second

// status tells what the page shows of any gateway: tables, sizes and topics. What is of a cluster, behind adds. An identity
// that may not read every table sees its own, and nothing of servers, topics and problems, which tell of others.
func (d *door) status(ctx context.Context) ui.Status {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s := ui.Status{Version: version, Role: d.role, Now: time.Now(), CoordinationAge: -1}
	who := access.From(ctx)
	for _, name := range d.behind.tables.Names() {
		m, ok := d.behind.tables.Get(name)
		if !ok || !who.May(access.Read, name) {
			continue
		}
		st, err := d.behind.source.Stats(ctx, name, 0)
		if err != nil {
			s.Problems = append(s.Problems, fmt.Sprintf("The sizes of table %s are not known: %v", name, err))
			st = &peer.Stats{}
		}
		for _, p := range st.ByPartition {
			if p.Damaged != "" {
				s.Problems = append(s.Problems, fmt.Sprintf("A segment is damaged, and its partition is not read: %s.", p.Damaged))
			}
			if p.Unflushed != "" {
				s.Problems = append(s.Problems, fmt.Sprintf("The rows of partition %s/%d cannot be written into a segment: %s.", name, p.ID, p.Unflushed))
			}
		}
		s.Tables = append(s.Tables, tableStatus(m, st))
	}
	if d.kafka != nil {
		s.Topics = d.rates.topics(s.Now, d.kafka.Status())
	}
	if d.behind.health != nil {
		if err := d.behind.health(); err != nil {
			s.Problems = append(s.Problems, "The store is fenced: "+err.Error())
		}
	}
	if d.behind.describe != nil {
		d.behind.describe(ctx, &s)
	}
	if !who.MayAll(access.Read) {
		s.Servers, s.Topics, s.Problems = []ui.Server{}, nil, nil
	}
	return s
}

func tableStatus(m *topology.Map, st *peer.Stats) ui.Table {
	sizes := map[point.PartitionID]peer.PartitionStats{}
	for _, p := range st.ByPartition {
		sizes[p.ID] = p
	}
	t := ui.Table{Name: m.Table, Seq: m.Seq, Retention: m.Config.Retention, Width: m.Config.PartitionWidth}
	for _, p := range m.Overlapping(math.MinInt64, math.MaxInt64) {
		one := ui.Partition{
			ID: uint64(p.ID), From: time.Unix(0, p.TimeLo), To: time.Unix(0, p.TimeHi),
			RingLo: ringShare(p.PointLo), RingHi: 1, State: "live", Rows: sizes[p.ID].Rows, Bytes: sizes[p.ID].Bytes,
		}
		if p.PointHi != 0 {
			one.RingHi = ringShare(p.PointHi)
		}
		for _, pl := range p.Placements {
			one.Servers = append(one.Servers, string(pl.Server))
		}
		t.Partitions = append(t.Partitions, one)
	}
	return t
}

func ringShare(point uint64) float64 { return float64(point) / (1 << 64) }

// rates remembers what was counted before, to tell how fast it grows.
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

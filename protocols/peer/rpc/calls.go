package rpc

import (
	"context"
	"errors"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/peerpb"
	"github.com/spillwaydb/spillway/protocols/point"
)

type nothing = peerpb.Nothing

// LabelNames implements peer.Storage.
func (p *Peer) LabelNames(ctx context.Context, q *peer.Select, limit int) (names []string, truncated bool, err error) {
	m := toSelect(q)
	m.Limit = int64(limit)
	var a peerpb.Names
	if err := p.lookUp(ctx, methodLabelNames, m, &a); err != nil {
		return nil, false, err
	}
	return a.GetNames(), a.GetTruncated(), nil
}

// LabelValues implements peer.Storage.
func (p *Peer) LabelValues(ctx context.Context, q *peer.Select, name string, limit int) (values []string, truncated bool, err error) {
	m := toSelect(q)
	m.Name, m.Limit = []byte(name), int64(limit)
	var a peerpb.Names
	if err := p.lookUp(ctx, methodLabelValues, m, &a); err != nil {
		return nil, false, err
	}
	return a.GetNames(), a.GetTruncated(), nil
}

// Exemplars implements peer.Storage.
func (p *Peer) Exemplars(ctx context.Context, q *peer.Select, sets [][]peer.Matcher) ([]peer.SeriesExemplars, error) {
	all, ids := toPartitions(q.Partitions)
	m := &peerpb.ExemplarsQuery{Table: q.Table, AllPartitions: all, Partitions: ids, Lo: q.Lo, Hi: q.Hi, MapSeq: q.MapSeq, MapNext: uint64(q.MapNext), Copies: uint32(q.Copies),
		Sets: mapped(sets, func(ms []peer.Matcher) *peerpb.Matchers { return &peerpb.Matchers{Matchers: mapped(ms, toMatcher)} })}
	var a peerpb.Exemplars
	if err := p.lookUp(ctx, methodExemplars, m, &a); err != nil {
		return nil, err
	}
	return ofExemplars(&a)
}

// PutMetadata implements peer.Storage.
func (p *Peer) PutMetadata(ctx context.Context, table string, rows []point.MetadataRow) error {
	return p.call(ctx, methodPutMetadata, &peerpb.MetadataRows{Table: table, Rows: mapped(rows, toMetadataRow)}, &nothing{})
}

// GetMetadata implements peer.Storage.
func (p *Peer) GetMetadata(ctx context.Context, table, metric string) ([]point.MetadataRow, error) {
	var a peerpb.MetadataRows
	if err := p.lookUp(ctx, methodGetMetadata, &peerpb.MetadataQuery{Table: table, Metric: []byte(metric)}, &a); err != nil {
		return nil, err
	}
	return mapped(a.GetRows(), ofMetadataRow), nil
}

// DeleteSeries implements peer.Storage.
func (p *Peer) DeleteSeries(ctx context.Context, q *peer.Select) error {
	return p.call(ctx, methodDeleteSeries, toSelect(q), &nothing{})
}

// CleanTombstones implements peer.Storage.
func (p *Peer) CleanTombstones(ctx context.Context, q *peer.Select) error {
	return p.call(ctx, methodCleanTombstones, toSelect(q), &nothing{})
}

// Stats implements peer.Storage.
func (p *Peer) Stats(ctx context.Context, table string, topN int) (*peer.Stats, error) {
	var a peerpb.Stats
	if err := p.call(ctx, methodStats, &peerpb.StatsQuery{Table: table, Top: int64(topN)}, &a); err != nil {
		return nil, err
	}
	return ofStats(&a), nil
}

var _ peer.StagedCounter = (*Peer)(nil)

// StagedStats implements peer.StagedCounter. A server of an older build is Unavailable.
func (p *Peer) StagedStats(ctx context.Context, table string) (*peer.Stats, error) {
	var a peerpb.Stats
	if err := p.call(ctx, methodStagedStats, &peerpb.StatsQuery{Table: table}, &a); err != nil {
		return nil, err
	}
	return ofStats(&a), nil
}

var _ peer.StagedRanger = (*Peer)(nil)

// StagedTimes implements peer.StagedRanger. A server of an older build is Invalid, not Unavailable: every query asks it, and it is not away.
func (p *Peer) StagedTimes(ctx context.Context, table string) (lo, hi point.Nanos, err error) {
	var a peerpb.Stats
	err = p.call(ctx, methodStagedTimes, &peerpb.StatsQuery{Table: table}, &a)
	if errors.Is(err, errOlder) {
		err = fault.Wrap(err, fault.Invalid, "the times of staged rows")
	}
	return a.GetMinTime(), a.GetMaxTime(), err
}

var _ peer.SliceEnder = (*Peer)(nil)

// EndSlices implements peer.SliceEnder. A server of an older build is Invalid, not Unavailable: it is asked again and again, and it is not away.
func (p *Peer) EndSlices(ctx context.Context, table string, parent point.PartitionID, below point.Epoch) error {
	err := p.call(ctx, methodEndSlices, &peerpb.EndSlices{Table: table, Partition: uint64(parent), Epoch: uint64(below)}, &nothing{})
	if errors.Is(err, errOlder) {
		err = fault.Wrap(err, fault.Invalid, "the end of slices")
	}
	return err
}

var _ peer.SealedRanker = (*Peer)(nil)

// HighestRank implements peer.SealedRanker. A server of an older build is Invalid, not Unavailable: it is not away.
func (p *Peer) HighestRank(ctx context.Context, table string, id point.PartitionID) (point.Stamp, error) {
	var a peerpb.HighestRank
	err := p.call(ctx, methodHighestRank, &peerpb.RankQuery{Table: table, Partition: uint64(id)}, &a)
	if errors.Is(err, errOlder) {
		err = fault.Wrap(err, fault.Invalid, "the highest rank of a partition")
	}
	return point.Stamp(a.GetRank()), err
}

func checkMap(what string, n int) error {
	if n > peer.MapBytesMax {
		return fault.Errorf(fault.TooLarge, "%s of %d bytes, at most %d travel", what, n, peer.MapBytesMax)
	}
	return nil
}

// Change implements peer.Metadata.
func (p *Peer) Change(ctx context.Context, c *peer.Change) (*peer.Changed, error) {
	if err := checkMap("a change", len(c.Ops)); err != nil {
		return nil, err
	}
	var a peerpb.Changed
	if err := p.call(ctx, methodChange, toChange(c), &a); err != nil {
		return nil, err
	}
	return ofChanged(&a)
}

// Store implements peer.Metadata.
func (p *Peer) Store(ctx context.Context, f *peer.File) error {
	if err := checkMap("a METADATA file", len(f.Map)+len(f.Ops)); err != nil {
		return err
	}
	if f.Map != nil || f.Digest == 0 {
		return p.call(ctx, methodStore, toFile(f), &nothing{})
	}
	err := p.call(ctx, methodStoreOps, toFile(f), &nothing{})
	if errors.Is(err, errOlder) { // its build has no digests, and would read their absence as another map
		return fault.Wrap(err, fault.Stale, "%s takes METADATA files whole", p.addr)
	}
	return err
}

// Fetch implements peer.Metadata.
func (p *Peer) Fetch(ctx context.Context, q *peer.FileQuery) (*peer.File, error) {
	var a peerpb.File
	if err := p.call(ctx, methodFetch, &peerpb.FileQuery{Table: q.Table, Txn: q.Txn[:], Since: someTxn(q.Since), Acted: q.Acted}, &a); err != nil {
		return nil, err
	}
	return ofFile(&a)
}

package rpc

import (
	"math"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/peerpb"
	"github.com/spillwaydb/spillway/protocols/point"
)

// To protobuf and back, each pair side by side. Incoming values are checked where package peer's contract needs it.

func mapped[A, B any](in []A, f func(A) B) []B {
	if in == nil {
		return nil
	}
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = f(a)
	}
	return out
}

func toPartitions(ids []point.PartitionID) (all bool, out []uint64) {
	return ids == nil, mapped(ids, func(p point.PartitionID) uint64 { return uint64(p) })
}

func ofPartitions(all bool, ids []uint64) []point.PartitionID {
	if all {
		return nil
	}
	out := make([]point.PartitionID, len(ids)) // none is not all
	for i, id := range ids {
		out[i] = point.PartitionID(id)
	}
	return out
}

func toMatcher(m peer.Matcher) *peerpb.Matcher {
	return &peerpb.Matcher{Type: uint32(m.Type), Name: []byte(m.Name), Value: []byte(m.Value)}
}

func ofMatchers(in []*peerpb.Matcher) ([]peer.Matcher, error) {
	for _, m := range in {
		if m.GetType() > uint32(peer.MatchNotRegexp) {
			return nil, fault.Errorf(fault.Invalid, "a matcher of type %d", m.GetType())
		}
	}
	return mapped(in, func(m *peerpb.Matcher) peer.Matcher {
		return peer.Matcher{Type: peer.MatchType(m.GetType()), Name: string(m.GetName()), Value: string(m.GetValue())}
	}), nil
}

func toSelect(q *peer.Select) *peerpb.Select {
	all, partitions := toPartitions(q.Partitions)
	seq := q.MapSeq
	if q.Copies.DeletesStaged() {
		seq = q.Hold
	}
	return &peerpb.Select{
		Table: q.Table, AllPartitions: all, Partitions: partitions, Lo: q.Lo, Hi: q.Hi, Matchers: mapped(q.Matchers, toMatcher),
		LabelsOnly: q.LabelsOnly, MapSeq: seq, MapNext: uint64(q.MapNext), Copies: uint32(q.Copies), SeriesMax: int64(q.SeriesMax), SamplesMax: int64(q.SamplesMax),
		Limit: int64(q.Limit),
	}
}

func ofSelect(p *peerpb.Select) (*peer.Select, error) {
	q, err := ofAnySelect(p)
	if err == nil {
		err = checkCopies(p.GetCopies())
	}
	return q, err
}

// ofDeletion is as ofSelect, for a deletion.
func ofDeletion(p *peerpb.Select) (*peer.Select, error) {
	q, err := ofAnySelect(p)
	if c := p.GetCopies(); err == nil && (c > math.MaxUint8 || !peer.Copies(c).Deletes()) {
		err = fault.Errorf(fault.Invalid, "a deletion in copies of kind %d is asked for", c)
	}
	if q.Copies.DeletesStaged() {
		q.Hold, q.MapSeq = q.MapSeq, 0
	}
	return q, err
}

func ofAnySelect(p *peerpb.Select) (*peer.Select, error) {
	matchers, err := ofMatchers(p.GetMatchers())
	return &peer.Select{
		Table: p.GetTable(), Partitions: ofPartitions(p.GetAllPartitions(), p.GetPartitions()), Lo: p.GetLo(), Hi: p.GetHi(),
		Matchers: matchers, LabelsOnly: p.GetLabelsOnly(), MapSeq: p.GetMapSeq(), MapNext: point.PartitionID(p.GetMapNext()),
		Copies: peer.Copies(p.GetCopies()), SeriesMax: int(p.GetSeriesMax()), SamplesMax: int(p.GetSamplesMax()),
		Limit: int(p.GetLimit()),
	}, err
}

// checkCopies refuses values that this build does not know: the answer would be another one than the asker means.
func checkCopies(c uint32) error {
	if c > uint32(peer.StagedRows) {
		return fault.Errorf(fault.Invalid, "copies of kind %d are asked for", c)
	}
	return nil
}

func toExemplar(e point.ExemplarRow) *peerpb.Exemplar {
	return &peerpb.Exemplar{Time: e.Time, Value: math.Float64bits(e.Value), Labels: []byte(e.Labels)}
}

func toSeriesExemplars(s peer.SeriesExemplars) *peerpb.SeriesExemplars {
	return &peerpb.SeriesExemplars{Labels: []byte(s.Labels), Exemplars: mapped(s.Exemplars, toExemplar)}
}

func ofExemplars(p *peerpb.Exemplars) ([]peer.SeriesExemplars, error) {
	for _, s := range p.GetSeries() {
		ok := point.Labels(s.GetLabels()).Valid()
		for _, e := range s.GetExemplars() {
			ok = ok && point.Labels(e.GetLabels()).Valid()
		}
		if !ok {
			return nil, fault.Errorf(fault.Corrupt, "exemplars of a series with malformed labels")
		}
	}
	return mapped(p.GetSeries(), func(s *peerpb.SeriesExemplars) peer.SeriesExemplars {
		return peer.SeriesExemplars{
			Labels: point.Labels(s.GetLabels()),
			Exemplars: mapped(s.GetExemplars(), func(e *peerpb.Exemplar) point.ExemplarRow {
				return point.ExemplarRow{Time: e.GetTime(), Value: math.Float64frombits(e.GetValue()), Labels: point.Labels(e.GetLabels())}
			}),
		}
	}), nil
}

func toMetadataRow(r point.MetadataRow) *peerpb.MetadataRow {
	return &peerpb.MetadataRow{Metric: []byte(r.Metric), Type: []byte(r.Type), Help: []byte(r.Help), Unit: []byte(r.Unit)}
}

func ofMetadataRow(r *peerpb.MetadataRow) point.MetadataRow {
	return point.MetadataRow{Metric: string(r.GetMetric()), Type: string(r.GetType()), Help: string(r.GetHelp()), Unit: string(r.GetUnit())}
}

func toNameCounts(in []peer.NameCount) []*peerpb.NameCount {
	return mapped(in, func(n peer.NameCount) *peerpb.NameCount {
		return &peerpb.NameCount{Name: []byte(n.Name), Count: n.Count}
	})
}

func ofNameCounts(in []*peerpb.NameCount) []peer.NameCount {
	return mapped(in, func(n *peerpb.NameCount) peer.NameCount {
		return peer.NameCount{Name: string(n.GetName()), Count: n.GetCount()}
	})
}

func toPastFence(f peer.PastFence) *peerpb.PastFence {
	if f == (peer.PastFence{}) {
		return nil
	}
	return &peerpb.PastFence{At: f.At, Why: strings.ToValidUTF8(f.Why, "?")}
}

func toStats(s *peer.Stats) *peerpb.Stats {
	return &peerpb.Stats{
		Series: s.Series, HeadRows: s.HeadRows, SegmentRows: s.SegmentRows, SegmentBytes: s.SegmentBytes, LabelPairs: s.LabelPairs,
		Partitions: int64(s.Partitions), Segments: int64(s.Segments), MinTime: s.MinTime, MaxTime: s.MaxTime,
		SeriesByName: toNameCounts(s.SeriesByName), ValuesByLabel: toNameCounts(s.ValuesByLabel),
		BytesByLabel: toNameCounts(s.BytesByLabel), SeriesByPair: toNameCounts(s.SeriesByPair),
		LostFound: s.LostFound, Unmapped: s.Unmapped,
		Unreached: mapped(s.Unreached, func(u peer.Unreached) *peerpb.Unreached {
			return &peerpb.Unreached{Server: strings.ToValidUTF8(u.Server, "?"), Why: strings.ToValidUTF8(u.Why, "?")}
		}),
		Fence:    toPastFence(s.Fence),
		Capacity: &peerpb.Capacity{RowsPerSecond: s.Capacity.RowsPerSecond, Minutes: int64(s.Capacity.Minutes)},
		Staged: mapped(s.Staged, func(x peer.StagedStats) *peerpb.StagedStats {
			return &peerpb.StagedStats{Server: strings.ToValidUTF8(x.Server, "?"), Frames: int64(x.Frames), Rows: int64(x.Rows), Bytes: x.Bytes, LaterRows: int64(x.Later), SoleRows: int64(x.Sole), Oldest: x.Oldest, Overdue: x.Overdue}
		}),
		ByPartition: mapped(s.ByPartition, func(p peer.PartitionStats) *peerpb.PartitionStats {
			return &peerpb.PartitionStats{Id: uint64(p.ID), Rows: p.Rows, Bytes: p.Bytes, MinTime: p.MinTime, MaxTime: p.MaxTime,
				Damaged: strings.ToValidUTF8(p.Damaged, "?"), Unflushed: strings.ToValidUTF8(p.Unflushed, "?"), Differs: strings.ToValidUTF8(p.Differs, "?"),
				Transfers: mapped(p.Transfers, func(x peer.Transfer) *peerpb.Transfer {
					return &peerpb.Transfer{To: strings.ToValidUTF8(x.To, "?"), Done: x.Done, Total: x.Total, BytesPerSecond: x.BytesPerSecond, Since: x.Since}
				})}
		}),
	}
}

func ofStats(p *peerpb.Stats) *peer.Stats {
	return &peer.Stats{
		Series: p.GetSeries(), HeadRows: p.GetHeadRows(), SegmentRows: p.GetSegmentRows(), SegmentBytes: p.GetSegmentBytes(), LabelPairs: p.GetLabelPairs(),
		Partitions: int(p.GetPartitions()), Segments: int(p.GetSegments()), MinTime: p.GetMinTime(), MaxTime: p.GetMaxTime(),
		SeriesByName: ofNameCounts(p.GetSeriesByName()), ValuesByLabel: ofNameCounts(p.GetValuesByLabel()),
		BytesByLabel: ofNameCounts(p.GetBytesByLabel()), SeriesByPair: ofNameCounts(p.GetSeriesByPair()),
		LostFound: p.GetLostFound(), Unmapped: p.GetUnmapped(),
		Unreached: mapped(p.GetUnreached(), func(u *peerpb.Unreached) peer.Unreached {
			return peer.Unreached{Server: u.GetServer(), Why: u.GetWhy()}
		}),
		Fence:    peer.PastFence{At: p.GetFence().GetAt(), Why: p.GetFence().GetWhy()},
		Capacity: peer.Capacity{RowsPerSecond: p.GetCapacity().GetRowsPerSecond(), Minutes: int(p.GetCapacity().GetMinutes())},
		Staged: mapped(p.GetStaged(), func(x *peerpb.StagedStats) peer.StagedStats {
			return peer.StagedStats{Server: x.GetServer(), Frames: int(x.GetFrames()), Rows: int(x.GetRows()), Bytes: x.GetBytes(), Later: int(x.GetLaterRows()), Sole: int(x.GetSoleRows()), Oldest: x.GetOldest(), Overdue: x.GetOverdue()}
		}),
		ByPartition: mapped(p.GetByPartition(), func(p *peerpb.PartitionStats) peer.PartitionStats {
			return peer.PartitionStats{ID: point.PartitionID(p.GetId()), Rows: p.GetRows(), Bytes: p.GetBytes(), MinTime: p.GetMinTime(), MaxTime: p.GetMaxTime(),
				Damaged: p.GetDamaged(), Unflushed: p.GetUnflushed(), Differs: p.GetDiffers(),
				Transfers: mapped(p.GetTransfers(), func(x *peerpb.Transfer) peer.Transfer {
					return peer.Transfer{To: x.GetTo(), Done: x.GetDone(), Total: x.GetTotal(), BytesPerSecond: x.GetBytesPerSecond(), Since: x.GetSince()}
				})}
		}),
	}
}

func ofTxn(b []byte) (t peer.TxnID, err error) {
	if len(b) != len(t) {
		return t, fault.Errorf(fault.Invalid, "a transaction id of %d bytes, it has %d", len(b), len(t))
	}
	return peer.TxnID(b), nil
}

func toMapAt(m peer.MapAt) *peerpb.MapAt {
	return &peerpb.MapAt{Txn: m.Txn[:], Seq: m.Seq, Servers: m.Servers}
}

// ofMapAt returns the map that an answer names beside its error, or none if it is malformed (peer.MapAt.Valid).
func ofMapAt(p *peerpb.MapAt) peer.MapAt {
	txn, err := ofTxn(p.GetTxn())
	if err != nil {
		return peer.MapAt{}
	}
	return peer.MapAt{Txn: txn, Seq: p.GetSeq(), Servers: p.GetServers()}
}

// someTxn and ofSomeTxn are for a transaction that may be none.
func someTxn(t peer.TxnID) []byte {
	if t == (peer.TxnID{}) {
		return nil
	}
	return t[:]
}

func ofSomeTxn(b []byte) (t peer.TxnID, err error) {
	if len(b) == 0 {
		return t, nil
	}
	return ofTxn(b)
}

func toChange(c *peer.Change) *peerpb.Change {
	return &peerpb.Change{Table: c.Table, Base: c.Base[:], Txn: c.Txn[:], Ops: c.Ops, Round: c.Round}
}

func ofChange(p *peerpb.Change) (*peer.Change, error) {
	base, err := ofTxn(p.GetBase())
	if err != nil {
		return nil, err
	}
	txn, err := ofTxn(p.GetTxn())
	return &peer.Change{Table: p.GetTable(), Base: base, Txn: txn, Ops: p.GetOps(), Round: p.GetRound()}, err
}

func toChanged(c *peer.Changed) *peerpb.Changed {
	return &peerpb.Changed{Txn: c.Txn[:], Seq: c.Seq}
}

func ofChanged(p *peerpb.Changed) (*peer.Changed, error) {
	txn, err := ofTxn(p.GetTxn())
	if err != nil {
		return nil, err
	}
	return &peer.Changed{Txn: txn, Seq: p.GetSeq()}, nil
}

func toFile(f *peer.File) *peerpb.File {
	return &peerpb.File{Table: f.Table, Txn: f.Txn[:], Seq: f.Seq, Sum: f.Sum, Whole: f.Map != nil, Map: f.Map, Base: f.Base[:], Ops: f.Ops,
		Digest: f.Digest, Since: someTxn(f.Since), Steps: f.Steps, ActedTxn: someTxn(f.Acted.Txn), ActedSeq: f.Acted.Seq}
}

func ofFile(p *peerpb.File) (*peer.File, error) {
	txn, err := ofTxn(p.GetTxn())
	if err != nil {
		return nil, err
	}
	base, err := ofTxn(p.GetBase())
	if err != nil {
		return nil, err
	}
	since, err := ofSomeTxn(p.GetSince())
	if err != nil {
		return nil, err
	}
	acted, err := ofSomeTxn(p.GetActedTxn())
	if err != nil {
		return nil, err
	}
	f := &peer.File{Table: p.GetTable(), Txn: txn, Seq: p.GetSeq(), Sum: p.GetSum(), Base: base, Ops: p.GetOps(),
		Digest: p.GetDigest(), Since: since, Steps: p.GetSteps(), Acted: peer.Acted{Txn: acted, Seq: p.GetActedSeq()}}
	if len(f.Steps) > peer.StepsMax {
		return nil, fault.Errorf(fault.TooLarge, "a METADATA file in %d steps, at most %d travel", len(f.Steps), peer.StepsMax)
	}
	if p.GetWhole() {
		if f.Map = p.GetMap(); f.Map == nil {
			f.Map = []byte{} // nil would mean that base and ops stand for it
		}
	}
	return f, nil
}

package querytest

import (
	"context"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Inserter returns a function that inserts whole batches into one partition of a table, series definitions first, and returns
// when the rows are as safe as can be. Stamps rise from call to call.
func Inserter(st peer.Storage, table string, partition point.PartitionID) func(context.Context, *point.Batch) error {
	stamp := point.Stamp(0)
	return func(ctx context.Context, b *point.Batch) error {
		stream, err := st.OpenStream(ctx, table)
		if err != nil {
			return err
		}
		defer stream.Close()
		if err := stream.Define(ctx, defs(b.Dict)); err != nil {
			return err
		}
		stamp += 1 << 10
		return stream.Insert(ctx, &peer.Insert{
			Partition: partition, Stamp: stamp, Level: point.All,
			IDs: b.IDs, Times: b.Times, Values: b.Values, Hists: b.Hists, Exemplars: b.Exemplars,
		})
	}
}

func defs(d *point.Dict) []peer.Def {
	out := make([]peer.Def, d.Len())
	for i := range out {
		id := point.SeriesID(i)
		out[i] = peer.Def{ID: id, Labels: d.Labels(id)}
	}
	return out
}

// Intern assigns labels a number in d.
func Intern(d *point.Dict, l point.Labels) point.SeriesID {
	id, err := d.Intern(d.Hash([]byte(l)), l)
	if err != nil {
		panic(err)
	}
	return id
}

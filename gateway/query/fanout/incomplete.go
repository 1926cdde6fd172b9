package fanout

import (
	"context"
	"slices"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// warnIncomplete warns of partitions that may lack rows for good: an operator had them go on without the servers that held
// them (C32).
func warnIncomplete(ctx context.Context, table string, ps []*topology.Partition) {
	marked := func(p *topology.Partition) bool { return p.Incomplete }
	if !slices.ContainsFunc(ps, marked) {
		return
	}
	var lacking []*topology.Partition
	for _, p := range ps {
		if marked(p) {
			lacking = append(lacking, p)
		}
	}
	query.Warn(ctx, "rows may be missing for good in "+names(lacking)+" of table "+table+": the disks that held them were lost")
}

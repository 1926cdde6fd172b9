package process

import (
	"context"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/figures"
	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

const (
	forecastAhead = 2 * time.Hour
	forecastPast  = 20 // of the partitions that ended are shown
)

// forecasts are those of a table's columns, from what the master recorded; none without a cluster, or before the master has written any. Errors are those of the coordination
// store.
func (d *door) forecasts(ctx context.Context, of found) ([]ui.Forecast, error) {
	row, ok, err := d.behind.coord.Get(ctx, master.GrowthPrefix+of.of.Table)
	if err != nil || !ok {
		return nil, err
	}
	growth, err := master.DecodeGrowth(row.Value)
	if err != nil {
		return nil, err
	}
	sizes := map[point.PartitionID]master.Size{}
	if of.stats != nil {
		for _, p := range of.stats.ByPartition {
			sizes[p.ID] = master.Size{Bytes: int64(p.Bytes), Rows: p.Rows}
		}
	}
	f := figures.Forecaster{Map: of.of, Now: time.Now().UnixNano(), Ahead: forecastAhead, Past: forecastPast, Target: float64(d.cfg.Tables.SplitBytes),
		Sizes: func(id point.PartitionID) (master.Size, bool) { s, ok := sizes[id]; return s, ok }}
	var out []ui.Forecast
	for _, col := range growth.Columns() {
		out = append(out, f.Column(col))
	}
	return out, nil
}

// addSmear reports for each table what becomes of rows that wait for their time, with the servers that there are.
func addSmear(s *ui.Status, all []found) {
	servers := 0
	for i := range s.Servers {
		if s.Servers[i].Live && !s.Servers[i].Draining {
			servers++
		}
	}
	for i := range all {
		s.Tables[i].Smear = smearStatus(all[i].of, s.Now, servers)
	}
}

// smearStatus is what gateways with intake.smear do with the rows of a table; nil: the table asks for nothing.
func smearStatus(m *topology.Map, now time.Time, servers int) *ui.Smear {
	if m.Config.Smear.Mode == smear.Off {
		return nil
	}
	window, why := m.Config.Smear.WithDefaults().Wanted(m.LoadAt(now.UnixNano(), servers))
	return &ui.Smear{Setting: m.Config.Smear.String(), Window: time.Duration(window), Why: string(why)}
}

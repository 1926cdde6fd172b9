package rpc

import (
	"context"
	"math"
	"reflect"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// stagedCounter is a Storage that counts staged rows.
type stagedCounter struct {
	*memory
	of peer.Stats
}

func (c *stagedCounter) StagedStats(_ context.Context, table string) (*peer.Stats, error) {
	if table != "t" {
		return nil, fault.Errorf(fault.NotFound, "table %q", table)
	}
	return &c.of, nil
}

// StagedTimes implements peer.StagedRanger.
func (c *stagedCounter) StagedTimes(_ context.Context, table string) (lo, hi point.Nanos, err error) {
	if table != "t" {
		return math.MaxInt64, math.MinInt64, nil
	}
	return c.of.MinTime, c.of.MaxTime, nil
}

func TestTheTimesOfStagedRowsTravel(t *testing.T) {
	p := serveEvaluator(t, &stagedCounter{newMemory(), peer.Stats{MinTime: -5, MaxTime: 9}})
	f := func(table string, wantLo, wantHi point.Nanos) {
		t.Helper()
		if lo, hi, err := p.StagedTimes(t.Context(), table); lo != wantLo || hi != wantHi || err != nil {
			t.Errorf("%s: %d to %d, %v", table, lo, hi, err)
		}
	}
	f("t", -5, 9)
	f("none", math.MaxInt64, math.MinInt64)
	_, _, err := serveEvaluator(t, newMemory()).StagedTimes(t.Context(), "t")
	wantKind(t, "a storage that does not know", err, fault.Invalid)
}

func TestTheCountOfStagedRowsTravels(t *testing.T) {
	want := peer.Stats{MinTime: -5, MaxTime: 9, Staged: []peer.StagedStats{{Server: "n1", Frames: 1, Rows: 2, Bytes: 3, Later: 4, Sole: 5, Oldest: 6, Overdue: 7}}}
	p := serveEvaluator(t, &stagedCounter{newMemory(), want})
	got, err := p.StagedStats(t.Context(), "t")
	if err != nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = p.StagedStats(t.Context(), "u")
	wantKind(t, "another table", err, fault.NotFound)
	_, err = serveEvaluator(t, newMemory()).StagedStats(t.Context(), "t")
	wantKind(t, "a storage that does not count", err, fault.Unavailable)
}

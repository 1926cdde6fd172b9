package tables

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// refresherMax bounds the wait for a newer map; without it a request goes on with the one it has.
const refresherMax = time.Second

// learnMax is the part of it for a map that a server named, before the coordination store is asked.
const learnMax = refresherMax / 2

// refreshed is the interface that a Refresher asks; Tables implements it.
type refreshed interface {
	Get(name string) (*topology.Map, bool)
	Refresh(ctx context.Context, name string, minSeq uint64) (*topology.Map, error)
	Learn(ctx context.Context, name string, at peer.MapAt) (*topology.Map, error)
}

// Refresher looks for newer maps on behalf of requests that met an old one. Safe for concurrent use.
type Refresher struct {
	tables refreshed
	log    *slog.Logger
	asked  singleflight.Group // refreshes under way, by table
}

// NewRefresher makes one that asks tables.
func NewRefresher(tables refreshed, log *slog.Logger) *Refresher {
	return &Refresher{tables: tables, log: log}
}

// Refresh looks for a newer map than m (Begin), and returns when there was an answer, or none, or when ctx ended.
func (r *Refresher) Refresh(ctx context.Context, table string, m *topology.Map, newer peer.MapAt) {
	over := r.Begin(ctx, table, m, newer)
	if over == nil {
		return
	}
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// Begin begins to look for a newer map than m, once for all that ask for the table at the same time; nil: one is here already. Where a server
// named one (newer; Seq 0: none did), it is fetched first, which needs no coordination store. The channel reports
// that there was an answer, or none for a second. That there is none newer, or no
// answer, is no error: the leader may be stale, or the server that said so, and the caller goes on with the map it
// has (C127).
func (r *Refresher) Begin(ctx context.Context, table string, m *topology.Map, newer peer.MapAt) <-chan singleflight.Result {
	if now, ok := r.tables.Get(table); !ok || now.Seq > m.Seq {
		return nil
	}
	return r.asked.DoChan(table, func() (any, error) {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), refresherMax)
		defer stop()
		if newer.Seq > m.Seq {
			limit, stop := context.WithTimeout(ctx, learnMax)
			now, err := r.tables.Learn(limit, table, newer)
			stop()
			if err == nil {
				return now, nil
			}
			r.log.Debug("a map that a server named cannot be had", "table", table, "seq", newer.Seq, "error", err)
		}
		now, err := r.tables.Refresh(ctx, table, 0)
		if err != nil {
			r.log.Debug("looking for a newer map", "table", table, "error", err)
		}
		return now, err
	})
}

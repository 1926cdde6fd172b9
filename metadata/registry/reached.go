package registry

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Reached removes Unreached from a server's row, as long as it names the address and the store directory at which the server was reached. Errors are the
// store's.
func Reached(ctx context.Context, store coord.Store, id topology.ServerID, addr string, dir lease.StoreID) error {
	return Change(ctx, store, id, func(s *Server) {
		if s.Addr == addr && s.Store == dir {
			s.Unreached, s.WasReached = "", false
		}
	})
}

// RefusedPrefix covers the rows of processes that do not register, because another server answers at the address that they would register. The doctor reports them.
const RefusedPrefix = "refused/"

// Refused is such a row. It is written again every RefusedEvery as long as the process waits, and older ones are of no process.
type Refused struct {
	ID   topology.ServerID `json:"id"`
	Addr string            `json:"addr"`
	Host string            `json:"host"`
	Why  string            `json:"why"`
	Time time.Time         `json:"time"`
}

// RefusedEvery is how often a row of RefusedPrefix is written; one that is RefusedStale old is left out.
const (
	RefusedEvery = time.Minute
	RefusedStale = 5 * time.Minute
)

// Refuse writes the row of a process that does not register. Errors are the store's.
func Refuse(ctx context.Context, store coord.Store, r Refused) error {
	value, err := json.Marshal(r)
	if err != nil {
		fault.Bug("the row of a process that does not register does not encode: %v", err)
	}
	return putRefused(ctx, store, r.ID, coord.Write{Value: value})
}

// Accepted removes the row that Refuse wrote, if there is one. Errors are the store's.
func Accepted(ctx context.Context, store coord.Store, id topology.ServerID) error {
	return putRefused(ctx, store, id, coord.Write{Delete: true})
}

// putRefused writes or deletes the row. Of two processes with one name either may win.
func putRefused(ctx context.Context, store coord.Store, id topology.ServerID, w coord.Write) error {
	w.Key = RefusedPrefix + string(id)
	row, there, err := store.Get(ctx, w.Key)
	if err != nil || w.Delete && !there {
		return err
	}
	_, _, err = store.Commit(ctx, []coord.Condition{{Key: w.Key, Revision: row.Revision}}, []coord.Write{w})
	return err
}

// AllRefused lists the processes that wait to register, by id. Rows that cannot be read are left out. Errors are the store's.
func AllRefused(ctx context.Context, store coord.Store, now time.Time) (all []Refused, err error) {
	rows, _, err := store.List(ctx, RefusedPrefix)
	for _, row := range rows {
		var r Refused
		if json.Unmarshal(row.Value, &r) == nil && string(r.ID) == strings.TrimPrefix(row.Key, RefusedPrefix) && now.Sub(r.Time).Abs() < RefusedStale {
			all = append(all, r)
		}
	}
	return all, err
}

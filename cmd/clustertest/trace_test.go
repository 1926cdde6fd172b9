package clustertest

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/protocols/trace/tracetest"
)

// TestClusterTracesWritesAndQueries from the gateway to the storage servers that it asks.
func TestClusterTracesWritesAndQueries(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	r := tracetest.New(t)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1, Env: []string{"SPILLWAY_TRACES_ENDPOINT=" + r.URL, "SPILLWAY_TRACES_ONE_IN=1"}})
	door := c.doors[0]
	line := fmt.Sprintf("cpu,host=a usage=1 %d", time.Now().UnixMilli())
	c.acked(door, "default", line) // it may be staged, since its partition has no leader yet
	c.atLeaders("default")
	c.acked(door, "default", line)
	c.within(processtest.Patience, "a query is answered", func() bool {
		code, text, err := door.Do(http.MethodGet, "/api/v1/query?query=cpu_usage", http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}, nil)
		if err != nil || code != http.StatusOK && code != http.StatusServiceUnavailable {
			t.Fatalf("%d %s %v", code, text, err)
		}
		return code == http.StatusOK
	})
	child := func(all []tracetest.Span, role, name string, of func(tracetest.Span) bool) bool {
		return slices.ContainsFunc(all, func(root tracetest.Span) bool {
			return of(root) && slices.ContainsFunc(all, func(s tracetest.Span) bool {
				return s.Role == role && (name == "" || s.Name == name) && s.Trace == root.Trace && s.ID != root.ID
			})
		})
	}
	r.Until(t, "a write, with its insert", func(all []tracetest.Span) bool {
		return child(all, "gateway", "peer Insert", func(s tracetest.Span) bool {
			return s.Name == "POST /write" && s.Attributes["spillway.table"] == "default"
		})
	})
	r.Until(t, "that insert at the storage server, with what it appended", func(all []tracetest.Span) bool {
		under := func(role, name, parent string) []tracetest.Span {
			return slices.DeleteFunc(slices.Clone(all), func(s tracetest.Span) bool { return s.Role != role || s.Name != name || s.Parent != parent })
		}
		for _, call := range all {
			if call.Role != "gateway" || call.Name != "peer Insert" {
				continue
			}
			for _, kept := range under("storage", "peer Insert", call.ID) {
				if kept.Attributes["spillway.table"] == "default" && len(under("storage", "append", kept.ID)) == 1 {
					return true
				}
			}
		}
		return false
	})
	r.Until(t, "a query of its sender's trace, with what a storage server did for it", func(all []tracetest.Span) bool {
		return child(all, "storage", "", func(s tracetest.Span) bool {
			return s.Name == "query" && s.Attributes["spillway.query"] == "cpu_usage" && s.Trace == "0af7651916cd43dd8448eb211c80319c" && s.Parent == "b7ad6b7169203331"
		})
	})
}

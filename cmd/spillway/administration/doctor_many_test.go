package administration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// far is a server that answers after 30 ms, and has nothing of t1; a frozen one never answers.
type far struct {
	frozen bool
	broken string // a table of which it has an error
}

func (f far) Stats(ctx context.Context, table string, _ int) (*peer.Stats, error) {
	answers := time.After(30 * time.Millisecond)
	if f.frozen {
		answers = nil
	}
	select {
	case <-answers:
	case <-ctx.Done():
		return nil, fault.Wrap(ctx.Err(), fault.Unavailable, "no answer")
	}
	if table == f.broken {
		return nil, fault.Errorf(fault.Internal, "a panic")
	}
	if table == "t1" {
		return nil, fault.Errorf(fault.NotFound, "it has nothing of it")
	}
	return &peer.Stats{LostFound: table}, nil
}

// TestDoctorOfAThousandTablesTakesSeconds: servers were asked about one table after the other.
func TestDoctorOfAThousandTablesTakesSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tables []*topology.Map
		for i := range 1000 {
			m, err := topology.New(fmt.Sprintf("t%d", i), topology.Config{PartitionWidth: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			tables = append(tables, m)
		}
		began := time.Now()
		stats, err := statsOf(t.Context(), tables, far{})
		if err != nil {
			t.Fatal(err)
		}
		for i, held := range stats {
			if (held == nil) != (i == 1) || held != nil && held.LostFound != tables[i].Table {
				t.Fatalf("table %d: %+v", i, held)
			}
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("a thousand tables take %v", took)
		}
		// An error about one table does not keep the others from being examined.
		stats, err = statsOf(t.Context(), tables, far{broken: "t2"})
		if !fault.Is(err, fault.Internal) || !strings.Contains(err.Error(), "t2") || stats[2] != nil || stats[999] == nil {
			t.Errorf("one broken table: %v, %v, %v", err, stats[2], stats[999])
		}
		began = time.Now()
		if _, err := statsOf(t.Context(), tables, far{frozen: true}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("a frozen server: %v", err)
		}
		if took := time.Since(began); took > fetchMax {
			t.Errorf("a frozen server takes %v", took)
		}
	})
}

package process

import (
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
)

// TestReadsOfPeersStayWithinTheMemoryOfAStorageServer: reads used memory without limit, and many look-ups of everything
// at once ended the process that kept the rows.
func TestReadsOfPeersStayWithinTheMemoryOfAStorageServer(t *testing.T) {
	cfg := config{Config: settings.Default()}
	cfg.DataDir, cfg.HTTP.Listen, cfg.Admin.Listen = t.TempDir(), "127.0.0.1:0", ""
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	p, err := openStandalone(t.Context(), &cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.drain()
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	var body strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&body, "cpu,host=h%d,path=%0100d v=1 1000\n", i, i)
	}
	w := httptest.NewRecorder()
	p.front.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/write?db=default", strings.NewReader(body.String())))
	if w.Code != http.StatusNoContent {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	everything := &peer.Select{Table: "default", Lo: 0, Hi: math.MaxInt64}

	accounts, err := openAccounts(512<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	stored := &storage{cfg: &cfg, server: p.server, rpc: new(rpc.Server), accounts: accounts} // as much of one as is booked
	free := accounts.process.Free()
	for _, f := range stored.follows() {
		f.ahead.Cover(f.held())
	}
	if n := accounts.series.Used(); n < 20_000*settings.KeptBytes || accounts.heads.Used() == 0 || accounts.process.Free() > free {
		t.Errorf("20,000 series are booked with %d bytes, heads with %d; %d of %d are free", n, accounts.heads.Used(), accounts.process.Free(), free)
	}

	ample := budget.New("queries", 256<<20)
	set, err := lending{p.server, ample}.Select(t.Context(), everything)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for set.Next() {
		n++
	}
	if held := ample.Used(); n != 20_000 || set.Err() != nil || held == 0 {
		t.Errorf("%d series, %d bytes are held: %v", n, held, set.Err())
	}
	if err := set.Close(); err != nil || ample.Used() != 0 {
		t.Errorf("%d bytes are held after the end: %v", ample.Used(), err)
	}

	small := lending{p.server, budget.New("queries", 2<<20)}
	refused := func(what string, err error, want fault.Kind) {
		t.Helper()
		if !fault.Is(err, want) || small.queries.Used() != 0 {
			t.Errorf("%s: %v, %d bytes are still held", what, err, small.queries.Used())
		}
	}
	set, err = small.Select(t.Context(), everything)
	if err == nil { // the error comes while the series are read
		for set.Next() {
		}
		err = set.Err()
		_ = set.Close()
	}
	refused("select", err, fault.TooLarge)
	_, _, err = small.LabelValues(t.Context(), everything, "path", 0)
	refused("label values", err, fault.TooLarge)
	if err := small.queries.Reserve(2 << 20); err != nil {
		t.Fatal(err)
	}
	_, err = small.Select(t.Context(), everything)
	small.queries.Release(2 << 20)
	refused("nothing is left", err, fault.Throttled)
}

// TestASmallReadOfAGatewayWaitsForMemory that others release within a second, as a query of one process does: it was refused at once.
func TestASmallReadOfAGatewayWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const mib = 1 << 20
		queries := budget.New("queries", 24*mib)
		if err := queries.Reserve(18 * mib); err != nil {
			t.Fatal(err)
		}
		_, loan, err := lending{queries: queries}.borrow(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer loan.Close()
		if err := queries.Reserve(5 * mib); err != nil { // there is nothing left
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { queries.Release(5 * mib) })
		began := time.Now()
		if err := loan.TakeSoon(3 * mib); err != nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

package standalonetest

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestBystanderSurvivesAFloodOfHeavyQueries sends a process of 512 MiB many parallel queries that need far more, while
// one table writes and reads: the process stays within its memory, and every acked row is there.
func TestBystanderSurvivesAFloodOfHeavyQueries(t *testing.T) {
	if testing.Short() {
		t.Skip("ten seconds of hostility")
	}
	const memory = 512 << 20
	p := processtest.New(t, "SPILLWAY_STORAGE_MEMORY_BYTES=512MiB")
	p.Start()
	now := time.Now()
	processtest.ManyHosts(p, 30_000, 10, now)
	flood := &processtest.QueryFlood{At: p, Now: now, Over: func() bool { return time.Since(now) > 10*time.Second }, Codes: map[int]int{}}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() { flood.Ask(rand.New(rand.NewPCG(1, uint64(i)))) })
	}
	acked := flood.Bystand()
	wg.Wait()
	if acked == 0 {
		t.Fatal("the bystander wrote nothing")
	}
	if got := flood.Count("count(count_over_time(bystander_v[1h]))"); got != acked {
		t.Errorf("%d series of the bystander are there, %d rows of them were acked", got, acked)
	}
	peak := processtest.PeakOf(t, p.Cmd.Process.Pid)
	if peak > memory/10*11 {
		t.Errorf("%d MiB of memory were taken of 512", peak>>20)
	}
	t.Logf("peak %d MiB, answers %v, %d rows of the bystander", peak>>20, flood.Codes, acked)
	for code := range flood.Codes {
		if code != http.StatusOK && code != http.StatusUnprocessableEntity && code != http.StatusServiceUnavailable {
			t.Errorf("%d answers of %d", flood.Codes[code], code)
		}
	}
}

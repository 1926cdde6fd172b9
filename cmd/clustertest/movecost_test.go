package clustertest

import (
	"cmp"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// needsMoveCost leaves the measurements of splits and drains to `make bench-moves`.
func needsMoveCost(t *testing.T) {
	t.Helper()
	if os.Getenv("MOVE_COST") == "" {
		t.Skip("what splits and drains cost writers is measured by `make bench-moves`")
	}
	needsCluster(t)
}

// movesRun is how long the load is measured on its own, and after what is measured.
const movesRun = 15 * time.Second

// TestClusterSplitCost splits a partition that has MOVE_BYTES in segments, three copies of them, while rows are written to it at MOVE_RATE a second: how long the
// rows wait for their acks before, while it is split, and while its rows move to its halves. Every acked row is counted in the end.
func TestClusterSplitCost(t *testing.T) {
	needsMoveCost(t)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1, Memory: "2GiB", Env: []string{"SPILLWAY_TABLES_SPLIT_BYTES=0"}})
	const width = 20 * 24 * time.Hour
	c.table("big", width, 3)
	p := c.cover("big", time.Now(), width, 1)[0]
	c.within(processtest.Patience, "three copies are in sync", c.listed(p, 3))
	l := &movesLoad{c: c, table: "big", pace: movePace(t)}
	from := time.Now().Add(-time.Hour)
	l.fill(p, from, processtest.EnvInt(t, "MOVE_BYTES", 300_000_000))
	t.Logf("the partition has %.0f MB in the segments of its leader, %d rows; the load is %.0f rows a second", c.segmentBytes(p)/1e6, l.rows, costRequest/l.pace.Seconds())

	l.begin()
	l.goesOnFor(movesRun)
	c.within(2*processtest.Patience, "all segments have three copies", func() bool { return c.lacking() == 0 })
	l.taken()
	l.goesOnFor(movesRun)
	before := l.taken()
	began := time.Now()
	c.command("partition", "split", "big", fmt.Sprint(p.ID), "--at", "ring-middle")
	c.within(processtest.Patience, "it is split", func() bool { return c.stateOf(p) == topology.Unload })
	split := time.Since(began)
	l.goesOnFor(2 * time.Second)
	during := l.taken()
	l.goesOnFor(movesRun)
	after := l.taken()
	l.end()
	t.Logf("before:                     %v", before)
	t.Logf("while it is split (%.1f s):  %v", split.Seconds(), during)
	t.Logf("while its rows move:        %v", after)
	l.check(time.Since(from) + time.Minute)
}

// TestClusterDrainCost drains one of four servers, which has MOVE_BYTES in the segments of closed partitions of two copies, while rows are written at MOVE_RATE a
// second: how many bytes a second leave, and how long rows wait for their acks before and meanwhile. Segments that the load's own table flushes are copied, too, some seconds
// before the master's next round begins the drain's copies: so bytes a second are those of the longest stretch without a pause of a second.
func TestClusterDrainCost(t *testing.T) {
	needsMoveCost(t)
	cfg := settings.Default()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 4, Gateways: 1, Memory: "2GiB", Env: []string{"SPILLWAY_TABLES_SPLIT_BYTES=0", "SPILLWAY_TABLES_BALANCE_BYTES=0",
		"SPILLWAY_STORAGE_FLUSH_IDLE=2s", "SPILLWAY_STORAGE_COPY_BYTES_PER_SECOND=" + cmp.Or(os.Getenv("MOVE_COPY"), cfg.Storage.CopyBytesPerSecond.String())}})
	c.table("closed", time.Hour, 2)
	const n = 12 // each lies on two of four servers
	from := time.Now().Truncate(time.Hour).Add(-40 * time.Hour)
	ps := c.cover("closed", from, time.Hour, n)
	closed := &movesLoad{c: c, table: "closed", pace: movePace(t)}
	for i, p := range ps {
		c.within(processtest.Patience, "two copies are in sync", c.listed(p, 2))
		closed.fill(p, from.Add(time.Duration(i)*time.Hour), processtest.EnvInt(t, "MOVE_BYTES", 300_000_000)*2/n)
	}
	c.table("busy", 24*time.Hour, 2)
	l := &movesLoad{c: c, table: "busy", pace: movePace(t)}
	l.begin()
	l.goesOnFor(movesRun)
	c.within(2*processtest.Patience, "all segments have two copies", func() bool { return c.lacking() == 0 })
	l.taken()
	l.goesOnFor(movesRun)
	before := l.taken()
	had, received := c.bytesIn("s1"), c.received()
	began := time.Now()
	drained := make(chan string, 1)
	go func() { drained <- c.command("server", "drain", "s1", "--reason=old disk", "--wait=10m") }()
	var stretches []stretch
	var steps []float64
	for at, got := time.Now(), received; len(drained) == 0; {
		l.goesOnFor(250 * time.Millisecond)
		now, sum := time.Now(), c.received()
		if sum > got {
			stretches = stretched(stretches, stretch{at, now, sum - got})
		}
		steps = append(steps, (sum-got)/now.Sub(at).Seconds()/1e6)
		at, got = now, sum
	}
	took := time.Since(began)
	acks := l.acked()
	l.end()
	if len(stretches) == 0 {
		t.Fatal("nothing was copied")
	}
	most := slices.MaxFunc(stretches, func(a, b stretch) int { return cmp.Compare(a.bytes, b.bytes) })
	copying := slices.DeleteFunc(slices.Clone(acks), func(a ack) bool { return a.at.Before(most.from) || a.at.Add(-a.took).After(most.to) })
	t.Logf("s1 had %.0f MB in segments; %.0f MB were copied in %.1f s (%.0f MB/s), %.1f s after the drain began; all took %.1f s; the load is %.0f rows a second", had/1e6, most.bytes/1e6,
		most.to.Sub(most.from).Seconds(), most.bytes/most.to.Sub(most.from).Seconds()/1e6, most.from.Sub(began).Seconds(), took.Seconds(), costRequest/l.pace.Seconds())
	t.Logf("MB/s in each quarter of a second: %.0f", steps)
	t.Logf("before:        %v", before)
	t.Logf("drain:         %v", phaseOf(acks))
	t.Logf("bytes copied:  %v", phaseOf(copying))
	l.check(time.Hour)
	closed.check(48 * time.Hour)
}

// stretch is a time in which segments were copied.
type stretch struct {
	from, to time.Time
	bytes    float64
}

// stretched adds one to those before; it goes on with the last one unless there was a second in between.
func stretched(all []stretch, next stretch) []stretch {
	if n := len(all); n > 0 && next.from.Sub(all[n-1].to) < time.Second {
		all[n-1].to = next.to
		all[n-1].bytes += next.bytes
		return all
	}
	return append(all, next)
}

// movePace is the time from one request to the next.
func movePace(t *testing.T) time.Duration {
	return time.Second * costRequest / time.Duration(processtest.EnvInt(t, "MOVE_RATE", 200_000))
}

// movesLoad writes rows to a table, of the series of each request at one time, with values that do not compress.
type movesLoad struct {
	c     *crowd
	table string
	pace  time.Duration
	rows  int // acked
	ended chan struct{}
	work  sync.WaitGroup

	mu   sync.Mutex
	acks []ack
	last time.Time
}

// ack is the end of a request.
type ack struct {
	at     time.Time
	took   time.Duration
	failed int           // how often it was refused before
	gap    time.Duration // since the ack before
}

// body is the rows of a request: ten fields of each host.
func (l *movesLoad) body(b []byte, i int, ms int64, rng *rand.Rand) []byte {
	for host := range costRequest / 10 {
		b = append(b, "load,host=h"...)
		b = strconv.AppendInt(b, int64(i%(costSeries/costRequest)*costRequest/10+host), 10)
		for f := range 10 {
			b = append(b, " ,"[min(f, 1)], 'f', byte('0'+f), '=')
			b = strconv.AppendFloat(b, rng.Float64(), 'g', -1, 64)
		}
		b = append(b, ' ')
		b = append(strconv.AppendInt(b, ms, 10), '\n')
	}
	return b
}

// fill writes rows from a time on, flat out, until the partition's leader has so many bytes in segments.
func (l *movesLoad) fill(p lease.Partition, from time.Time, bytes int) {
	l.c.t.Helper()
	var wait sync.WaitGroup
	var mu sync.Mutex
	next, full := 0, false
	for range 4 {
		wait.Go(func() {
			rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
			var b []byte
			for {
				mu.Lock()
				i := next
				if next++; i%500 == 0 {
					full = full || l.c.segmentBytes(p) >= float64(bytes)
				}
				stop := full
				mu.Unlock()
				if stop {
					return
				}
				b = l.body(b[:0], i, from.UnixMilli()+int64(i), rng)
				l.c.within(processtest.Patience, "rows are acked", func() bool {
					status, _, err := processtest.PutLine(l.c.doors[0], l.table, string(b))
					return err == nil && status == http.StatusNoContent
				})
				mu.Lock()
				l.rows += costRequest
				mu.Unlock()
			}
		})
	}
	wait.Wait()
}

// begin writes rows of now at the pace, until end.
func (l *movesLoad) begin() {
	l.ended = make(chan struct{})
	began := time.Now()
	const workers = 8
	for worker := range workers {
		l.work.Go(func() {
			rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
			var b []byte
			for i := worker; ; i += workers {
				due := began.Add(time.Duration(i) * l.pace)
				select {
				case <-l.ended:
					return
				case <-time.After(time.Until(due)):
				}
				b = l.body(b[:0], i, due.UnixMilli(), rng) // no two requests of a series have one time
				l.send(b)
			}
		})
	}
}

// send sends a request until it is acked, and notes how long that lasted.
func (l *movesLoad) send(b []byte) {
	began, failed := time.Now(), 0
	for {
		status, text, err := processtest.PutLine(l.c.doors[0], l.table, string(b))
		if err == nil && status == http.StatusNoContent {
			break
		}
		if failed++; time.Since(began) > processtest.Patience {
			l.c.t.Errorf("rows are not acked: %d %s %v", status, text, err)
			return
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.rows += costRequest
	a := ack{at: now, took: now.Sub(began), failed: failed}
	if !l.last.IsZero() {
		a.gap = now.Sub(l.last)
	}
	l.last, l.acks = now, append(l.acks, a)
}

func (l *movesLoad) end() {
	close(l.ended)
	l.work.Wait()
}

func (l *movesLoad) goesOnFor(d time.Duration) { <-time.After(d) }

// phase is how long requests waited for their acks.
type phase struct {
	requests, failed   int
	p50, p99, max, gap time.Duration
}

func (p phase) String() string {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return fmt.Sprintf("%5d requests, %d refused; wait for the ack p50 %.1f ms, p99 %.1f ms, longest %.1f ms; longest time without any ack %.1f ms",
		p.requests, p.failed, ms(p.p50), ms(p.p99), ms(p.max), ms(p.gap))
}

// acked returns the acks since the last call.
func (l *movesLoad) acked() (acks []ack) {
	l.mu.Lock()
	defer l.mu.Unlock()
	acks, l.acks = l.acks, nil
	return acks
}

// taken is acked as a phase.
func (l *movesLoad) taken() phase { return phaseOf(l.acked()) }

func phaseOf(acks []ack) phase {
	p := phase{requests: len(acks)}
	var waits []time.Duration
	for _, a := range acks {
		p.failed += a.failed
		p.gap = max(p.gap, a.gap)
		waits = append(waits, a.took)
	}
	slices.Sort(waits)
	if n := len(waits); n > 0 {
		p.p50, p.p99, p.max = waits[n/2], waits[n*99/100], waits[n-1]
	}
	return p
}

// check counts the rows of a table.
func (l *movesLoad) check(over time.Duration) {
	l.c.t.Helper()
	got := 0.0
	for f := range 10 { // each within the bound of samples that a query may read
		status, text := processtest.Ask(l.c.doors[0], l.table, fmt.Sprintf("sum(count_over_time(load_f%d[%dms]))", f, over.Milliseconds()), time.Now())
		i, j := strings.LastIndex(text, `,"`), strings.LastIndex(text, `"]`)
		if status != http.StatusOK || i < 0 || j < i {
			l.c.t.Errorf("rows are not counted: %d %.300s", status, text)
			return
		}
		n, err := strconv.ParseFloat(text[i+2:j], 64)
		l.c.must(err)
		got += n
	}
	if int(got) != l.rows {
		l.c.t.Errorf("table %s has %.0f rows, %d were acked", l.table, got, l.rows)
	}
}

// segmentBytes is the size of the segments of a partition at its leader.
func (c *crowd) segmentBytes(p lease.Partition) float64 {
	s, _ := c.leader(p)
	m, _ := c.view.Tables.Get(p.Table)
	at, ok := m.ByID(p.ID)
	if !ok || s == "" {
		return 0
	}
	pl, _ := at.On(s)
	return bytesUnder(filepath.Join(c.dirOf(c.server(s)), "segments", pl.ID.String()))
}

// bytesIn is the size of all segments of a server.
func (c *crowd) bytesIn(s topology.ServerID) float64 {
	return bytesUnder(filepath.Join(c.dirOf(c.server(s)), "segments"))
}

func bytesUnder(dir string) (sum float64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error { // files go while it looks
		if err == nil && !e.IsDir() {
			if info, err := e.Info(); err == nil {
				sum += float64(info.Size())
			}
		}
		return nil
	})
	return sum
}

// received is how many bytes of segments all servers have received.
func (c *crowd) received() (sum float64) {
	for _, addr := range c.Admin {
		sum += processtest.Metric(c.t, addr, "spillway_replica_received_bytes_total")
	}
	return sum
}

// lacking is how many placements lack segments.
func (c *crowd) lacking() (sum float64) {
	for _, addr := range c.Admin {
		sum += processtest.Metric(c.t, addr, "spillway_replica_placements_behind")
	}
	return sum
}

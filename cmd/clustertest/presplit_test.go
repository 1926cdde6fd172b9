package clustertest

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestClusterPresplitFollowsTheLoad writes rows at a known rate into a table whose growth over the last eight days a former master has recorded. The test expects:
//   - The master cuts the coming hour by the forecast of that growth, neighbours on different servers, and partitions close with about the target size.
//   - After the load doubles, one plan cuts again all partitions that have no leader yet, and none that has one.
//   - Partitions of another table whose time passed without rows are merged.
//   - Every acked row is read back.
func TestClusterPresplitFollowsTheLoad(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	const target, width, ahead = 128 << 10, seasonalTable, time.Hour
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: []string{unmerged, fmt.Sprintf("SPILLWAY_TABLES_SPLIT_BYTES=%d", target), "SPILLWAY_TABLES_PRESPLIT_AHEAD=1h", "SPILLWAY_STORAGE_FLUSH_IDLE=1s"}})
	c.table("sized", width, 1)
	passed := c.passed("passed")
	l := &seasonal{c: c, table: "sized", began: time.Now(), base: 400, factor: 1, quit: make(chan struct{})}
	l.weigh(target)
	l.wait.Go(l.run)
	defer l.stop()
	l.record()
	c.depose()

	var laid []*topology.Partition
	c.within(processtest.Patience, "the next master lays out most of an hour", func() bool {
		laid = c.ahead("sized", width)
		return len(laid) > 0 && laid[len(laid)-1].TimeHi > time.Now().Add(ahead*3/4).UnixNano()
	})
	if begins := time.Until(time.Unix(0, laid[0].TimeLo)); begins > 5*time.Minute {
		t.Errorf("the first partition that is cut by the forecast begins in %v", begins)
	}
	l.fits("laid out", laid[:len(laid)-1], target) // the last one ends where partitions of the table's width begin
	led := l.lead(7 * time.Minute)
	until := led[len(led)-1].TimeHi
	l.fill(led, target)

	before := c.ahead("sized", width)
	l.double()
	l.record()
	c.depose()
	behind := -1
	c.within(processtest.Patience, "what no server leads is cut anew", func() bool { // meanwhile partitions begin, and others are laid out behind the last one
		laid = c.ahead("sized", width)
		behind = slices.IndexFunc(laid, func(p *topology.Partition) bool {
			return p.TimeLo >= until && p.TimeHi < before[len(before)-1].TimeLo && !slices.ContainsFunc(before, func(q *topology.Partition) bool { return q.ID == p.ID })
		})
		return behind >= 0
	})
	for _, p := range led {
		if p.TimeLo < time.Now().UnixNano() {
			continue // it has begun, so that ahead leaves it out
		}
		if !slices.ContainsFunc(laid, func(q *topology.Partition) bool { return q.ID == p.ID && q.TimeLo == p.TimeLo && q.TimeHi == p.TimeHi }) {
			t.Errorf("p%d is led, and was cut again", p.ID)
		}
	}
	l.fits("cut anew", laid[behind:len(laid)-1], target)

	c.within(processtest.Patience, "partitions that passed without rows are merged", func() bool { m, _ := c.view.Tables.Get("passed"); return m.Len() == 3 })
	if m, _ := c.view.Tables.Get("passed"); !slices.ContainsFunc(slices.Collect(m.All()), func(p *topology.Partition) bool { return p.ID == passed.ID }) {
		t.Error("the partition with a row is no more")
	}
	l.stop()
	l.check(time.Unix(0, until))
}

// seasonal writes rows at a rate that grows, and rises and falls by the time of day; rate returns it for any time.
type seasonal struct {
	c     *crowd
	table string
	began time.Time
	base  float64 // rows a second when it began
	bytes float64 // of a row at rest
	quit  chan struct{}
	once  sync.Once
	wait  sync.WaitGroup
	acked atomic.Int64

	writing sync.Mutex // held while rows of now are written

	mu      sync.Mutex
	factor  float64   // of the load now
	doubled time.Time // when it changed
}

const (
	seasonalSeries = 160
	seasonalTable  = 2 * time.Minute // the width of its partitions that are not cut by the forecast
	seasonalWidth  = 40              // seconds that a partition should cover
	seasonalTick   = 100 * time.Millisecond
)

// rate is how many rows a second there are at a time, without what changed within the test.
func (l *seasonal) rate(at time.Time) float64 {
	days := at.Sub(l.began).Hours() / 24
	return l.base * math.Pow(1.05, days) * (1 + 0.6*math.Sin(2*math.Pi*days))
}

// double lets twice as many rows come from now on.
func (l *seasonal) double() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.factor, l.doubled = 2, time.Now()
}

func (l *seasonal) times() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.factor
}

// run writes the rows of now. After a pause it writes those of the pause, too.
func (l *seasonal) run() {
	for from := l.began.Truncate(seasonalTick); ; {
		select {
		case <-l.quit:
			return
		case <-time.After(seasonalTick):
		}
		l.writing.Lock()
		until := time.Now().Truncate(seasonalTick)
		l.put("now", from, until)
		from = until
		l.writing.Unlock()
	}
}

func (l *seasonal) stop() {
	l.once.Do(func() { close(l.quit) })
	l.wait.Wait()
}

// put writes the rows of [from, until), which are whole ticks, a series after the other.
func (l *seasonal) put(by string, from, until time.Time) {
	var b strings.Builder
	n, owed := int(from.UnixMilli()/seasonalTick.Milliseconds())*seasonalSeries/4, 0.0
	send := func() {
		if b.Len() == 0 {
			return
		}
		lines := b.String()
		b.Reset()
		for i, end := 0, time.Now().Add(processtest.Patience); ; i++ {
			if status, _, err := processtest.PutLine(l.c.doors[i%len(l.c.doors)], l.table, lines); err == nil && status == http.StatusNoContent {
				l.acked.Add(int64(strings.Count(lines, "\n")))
				return
			}
			if time.Now().After(end) {
				l.c.t.Errorf("rows of %v are not acked", from)
				return
			}
			time.Sleep(seasonalTick)
		}
	}
	for at := from; at.Before(until); at = at.Add(seasonalTick) {
		for owed += l.rate(at) * l.times() * seasonalTick.Seconds(); owed >= 1; owed-- {
			fmt.Fprintf(&b, "seasonal,by=%s,s=%d v=%v %d\n", by, n%seasonalSeries, rand.Float64(), at.Add(time.Duration(n%80)*time.Millisecond).UnixMilli())
			if n++; n%5000 == 0 {
				send()
			}
		}
	}
	send()
}

// record stores the growth of the table up to now, as a master that saw it leaves it behind.
func (l *seasonal) record() {
	c := l.c
	c.t.Helper()
	m, err := topology.New(l.table, topology.Config{PartitionWidth: 24 * time.Hour})
	c.must(err)
	now := time.Now()
	var days []point.Nanos
	for d := range 10 {
		days = append(days, now.Add(-time.Duration(d)*24*time.Hour).UnixNano())
	}
	m = m.Cover(days, func(point.PartitionID) []topology.Placement { return []topology.Placement{{ID: 1, Server: "s1"}} })
	l.mu.Lock()
	since := now // of twice the load: long enough to be believed
	if !l.doubled.IsZero() {
		since = l.doubled.Add(-15 * time.Minute)
	}
	l.mu.Unlock()
	var g *master.Growth
	sizes := map[lease.Partition]master.Size{}
	for at := now.Add(-8 * 24 * time.Hour); !at.After(now); {
		step := 5 * time.Minute
		if now.Sub(at) < 4*time.Hour {
			step = time.Minute
		}
		p, _ := m.Find(0, at.UnixNano())
		key := lease.Partition{Table: l.table, ID: p.ID}
		rows := l.rate(at) * step.Seconds()
		if at.After(since) {
			rows *= 2
		}
		sizes[key] = master.Size{Rows: sizes[key].Rows + uint64(rows), Bytes: sizes[key].Bytes + int64(20*rows)}
		g = g.Observed(at.UnixNano(), m, sizes)
		at = at.Add(step)
	}
	c.commit(coord.Write{Key: master.GrowthPrefix + l.table, Value: g.Encode()})
}

// weigh writes as many rows as a partition should have into one that has passed, waits until they are at rest, and sets the rate by their bytes.
func (l *seasonal) weigh(target float64) {
	l.c.t.Helper()
	from := l.began.Add(-16 * time.Minute).Truncate(2 * time.Minute)
	l.put("before", from, from.Add(seasonalWidth*time.Second))
	l.atRest()
	rows, bytes := l.c.held(l.table, func(p ui.Partition) bool { return p.From.Equal(from) })
	if rows < 1000 {
		l.c.fatal(fmt.Sprintf("%.0f rows at rest", rows))
	}
	l.bytes = bytes / rows
	l.base = target / l.bytes / seasonalWidth
	l.c.t.Logf("a row has %.2f bytes, and there are %.0f a second", l.bytes, l.base)
}

// atRest waits until all rows are flushed. No rows of now must be written meanwhile.
func (l *seasonal) atRest() {
	l.c.t.Helper()
	l.c.within(processtest.Patience, "all rows are flushed", func() bool {
		for _, p := range l.c.Storage {
			st, ok := l.c.view.Peers.Server(topology.ServerID(p.Name))
			if !ok {
				return false
			}
			stats, err := st.Stats(l.c.t.Context(), l.table, 0)
			if err != nil && !fault.Is(err, fault.NotFound) || err == nil && stats.HeadRows > 0 {
				return false
			}
		}
		return true
	})
}

// rows is how many a partition gets by the rate.
func (l *seasonal) rows(p *topology.Partition) (rows float64) {
	for at := p.TimeLo; at < p.TimeHi; at += int64(seasonalTick) {
		rows += l.rate(time.Unix(0, at)) * seasonalTick.Seconds()
	}
	return rows
}

// fits checks partitions that should get near the target, and that neighbours are on different servers.
func (l *seasonal) fits(what string, parts []*topology.Partition, target float64) {
	t := l.c.t
	t.Helper()
	var sizes []float64
	for i, p := range parts {
		size := l.rows(p) * l.times() * l.bytes
		if i == len(parts)-1 && size < target && p.TimeHi%int64(seasonalTable) == 0 { // the rest of a pass of the master, which a later one went on from
			t.Logf("%s: the last partition is the rest of a pass: %.2f of the target", what, size/target)
		} else {
			sizes = append(sizes, size)
		}
		if i == 0 {
			continue
		}
		if last := parts[i-1]; last.TimeHi != p.TimeLo || last.Placements[0].Server == p.Placements[0].Server {
			t.Errorf("%s: p%d lies on %s, and p%d, which ends %v before, too", what, p.ID, p.Placements[0].Server, last.ID, time.Duration(p.TimeLo-last.TimeHi))
		}
	}
	l.near(what, sizes, target)
}

// near checks sizes against the target.
func (l *seasonal) near(what string, sizes []float64, target float64) {
	t := l.c.t
	t.Helper()
	var off []float64
	for i, size := range sizes {
		off = append(off, math.Abs(size/target-1))
		if off[i] > 0.5 {
			t.Errorf("%s: partition %d of %d gets %.2f of the target", what, i, len(sizes), size/target)
		}
	}
	slices.Sort(off)
	if len(off) < 4 {
		t.Fatalf("%s: there are %d partitions", what, len(off))
	}
	t.Logf("%s: %d partitions are off the target by %.1f %% in the median, %.1f %% at most", what, len(off), 100*off[len(off)/2], 100*off[len(off)-1])
	if off[len(off)/2] > 0.15 {
		t.Errorf("%s: in the median they are off the target by %.1f %%", what, 100*off[len(off)/2])
	}
}

// lead writes a row into each partition from now on until all of them are led, so that no plan cuts these again, and returns those that are cut by the forecast.
func (l *seasonal) lead(until time.Duration) (led []*topology.Partition) {
	end := time.Now().Add(until).UnixNano()
	l.c.within(processtest.Patience, "the partitions of the next minutes are led", func() bool {
		m, _ := l.c.view.Tables.Get(l.table)
		led = nil
		whole := true
		for _, p := range m.Overlapping(time.Now().UnixNano(), end) {
			if s, _ := l.c.leader(lease.Partition{Table: l.table, ID: p.ID}); s == "" {
				whole = false
				status, _, err := processtest.PutLine(l.c.doors[0], l.table, fmt.Sprintf("first,p=%d v=1 %d\n", p.ID, p.TimeLo/1e6+1))
				if err != nil || status != http.StatusNoContent {
					return false
				}
			} else if time.Duration(p.TimeHi-p.TimeLo) < 2*time.Minute {
				led = append(led, p)
			}
		}
		return whole
	})
	return led
}

// fill writes the rows of the times of partitions, and checks how large these are. One that has begun by then, on a busy machine, gets rows of now too.
func (l *seasonal) fill(parts []*topology.Partition, target float64) {
	l.c.t.Helper()
	for _, p := range parts {
		l.put("ahead", time.Unix(0, p.TimeLo), time.Unix(0, p.TimeHi))
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	now := time.Now().UnixNano()
	l.atRest()
	var sizes []float64
	for _, p := range parts {
		if p.TimeLo <= now {
			continue
		}
		rows, bytes, want := 0.0, 0.0, l.rows(p)
		l.c.within(processtest.Patience, "the rows of a partition are counted", func() bool {
			rows, bytes = l.c.held(l.table, func(q ui.Partition) bool { return q.ID == uint64(p.ID) })
			return rows >= want-1
		})
		sizes = append(sizes, bytes)
	}
	if len(sizes) < 4 && len(parts) >= 4 {
		l.c.t.Logf("closed: %d of %d partitions had begun before their rows were written: what is left says too little", len(parts)-len(sizes), len(parts))
		return
	}
	l.near("closed", sizes, target)
}

// check asks every gateway for all rows.
func (l *seasonal) check(until time.Time) {
	l.c.t.Helper()
	for _, door := range l.c.doors {
		status, text := processtest.Ask(door, l.table, "sum(count_over_time(seasonal_v[1h]))", until)
		if want := fmt.Sprintf(`,"%d"]`, l.acked.Load()); status != http.StatusOK || !strings.Contains(text, want) {
			l.c.t.Errorf("%d rows were acked: %d %.300s", l.acked.Load(), status, text)
		}
	}
}

// depose ends the term of the master: its row names a process that is no more.
func (c *crowd) depose() {
	c.t.Helper()
	c.commit(coord.Write{Key: master.Key, Value: master.Holder{Holder: "gone", Boot: "gone", N: 1}.Encode()})
}

// ahead are the partitions to come that are narrower than the table's are without a forecast, by their time.
func (c *crowd) ahead(table string, width time.Duration) []*topology.Partition {
	c.t.Helper()
	m, _ := c.view.Tables.Get(table)
	out := slices.DeleteFunc(m.Overlapping(time.Now().UnixNano(), math.MaxInt64), func(p *topology.Partition) bool {
		return p.TimeLo < time.Now().UnixNano() || time.Duration(p.TimeHi-p.TimeLo) >= width
	})
	slices.SortFunc(out, func(a, b *topology.Partition) int { return int(min(max(a.TimeLo-b.TimeLo, -1), 1)) })
	return out
}

// held are the rows and bytes in some partitions of a table, as a gateway shows them.
func (c *crowd) held(table string, of func(ui.Partition) bool) (rows, bytes float64) {
	c.t.Helper()
	status, body, err := c.doors[0].Get(ui.Path + "?table=" + table)
	var page struct{ Data ui.Status }
	if err != nil || status != http.StatusOK || json.Unmarshal(body, &page) != nil {
		return 0, 0
	}
	for _, t := range page.Data.Tables {
		for _, p := range t.Partitions {
			if t.Name == table && p.Rows != nil && p.Bytes != nil && of(p) {
				rows, bytes = rows+float64(*p.Rows), bytes+float64(*p.Bytes)
			}
		}
	}
	return rows, bytes
}

// passed makes a table with twelve partitions of five minutes three hours ago, as they were cut ahead of their time, and a row in one of them.
func (c *crowd) passed(table string) lease.Partition {
	c.t.Helper()
	c.table(table, time.Hour, 1)
	from := time.Now().Truncate(time.Hour).Add(-3 * time.Hour)
	make := func(which ...int) {
		_, err := c.view.Tables.Change(c.t.Context(), table, func(m *topology.Map) ([]topology.Op, error) {
			var op topology.Presplit
			op.Now = from.Add(-time.Hour).UnixNano()
			for i, n := range which {
				lo := from.Add(time.Duration(n) * 5 * time.Minute)
				op.Partitions = append(op.Partitions, topology.Partition{ID: m.NextID + point.PartitionID(i), TimeLo: lo.UnixNano(), TimeHi: lo.Add(5 * time.Minute).UnixNano(),
					Placements: []topology.Placement{{ID: point.PlacementID(n + 1), Server: topology.ServerID(c.Storage[n%len(c.Storage)].Name)}}})
			}
			return []topology.Op{op}, nil
		})
		c.must(err)
	}
	make(6)
	at := from.Add(32 * time.Minute)
	c.within(processtest.Patience, "a row of three hours ago is acked", func() bool {
		status, _, err := processtest.PutLine(c.doors[0], table, fmt.Sprintf("late v=1 %d\n", at.UnixMilli()))
		return err == nil && status == http.StatusNoContent
	})
	make(0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11)
	m, err := c.view.Tables.Refresh(c.t.Context(), table, 0)
	c.must(err)
	p, _ := m.Find(0, at.UnixNano())
	return lease.Partition{Table: table, ID: p.ID}
}

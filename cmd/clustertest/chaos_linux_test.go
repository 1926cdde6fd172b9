package clustertest

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// chaos is a run of TestChaosLosesNothingAcked.
type chaos struct {
	*crowd
	storm   *storm
	changes *changes
	seed    uint64
	era     int
	senders []*sender
	records *records
	witness *witness

	sum     tally
	changed map[string]int    // changes by kind
	refused int               // changes
	worst   map[string]*worst // by kind of blow
}

// tally is the figures of a whole run.
type tally struct {
	acked, records, erasures, kills, answers, refused, warned int

	codes map[int]int     // answers to writes and deletions
	took  []time.Duration // from a write to its ack
}

// worst are the longest times of one kind of blow.
type worst struct {
	blows                         int
	stall, erase, query, relisted time.Duration
}

// chaosEra is how many blows the rows of an era outlive; then new series begin, so that a check does not read all rows since the beginning.
const chaosEra = 10

// TestChaosLosesNothingAcked does harm to a cluster with three copies of each row, blow after blow, chosen by a seed, while senders
// write by remote-write 1 and 2, line protocol and Kafka, overwrite and delete, and readers count. Before most blows a partition with rows begins to be split, merged or
// moved, or a server to be drained, which goes on under the blow. After each blow it heals the
// cluster, waits until all copies are in sync, and compares the rows that were acked with those read through both gateways and from
// each copy. CHAOS_N is how many blows, TEST_SEED which, CHAOS_BLOWS words of which one must be in a blow's name, CHAOS_CHANGES those of changes (none: nothing else happens), CHAOS_LOGS a directory for
// what the processes print and, after a failure, for their data.
func TestChaosLosesNothingAcked(t *testing.T) {
	n := processtest.EnvInt(t, "CHAOS_N", 0)
	if n == 0 {
		t.Skip("a cluster is harmed in `make chaos`")
	}
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("make chaos N=%d SEED=%d CHAOS_BLOWS=%q CHAOS_CHANGES=%q CHAOS_STORAGE=%q", n, seed, os.Getenv("CHAOS_BLOWS"), os.Getenv("CHAOS_CHANGES"), os.Getenv("CHAOS_STORAGE"))
	x := newChaos(t, seed)
	allowed := x.allowed()
	for i := range n {
		if i%chaosEra == 0 {
			x.begin()
		}
		last := i == n-1 || (i+1)%chaosEra == 0
		if x.round(i, allowed); t.Failed() {
			t.Fatalf("after blow %d", i+1)
		}
		if last {
			x.settled()
		}
	}
	x.end()
	x.record()
}

// newChaos starts the cluster, on a network that can be cut and with a disk that can be filled, where this machine has them.
func newChaos(t *testing.T, seed uint64) *chaos {
	http.DefaultClient.Timeout = 2 * processtest.Patience // longer than any answer may need: then it hangs
	t.Cleanup(func() { http.DefaultClient.Timeout = 0 })
	x := &chaos{seed: seed, records: newRecords(t), worst: map[string]*worst{}, changed: map[string]int{}, sum: tally{codes: map[int]int{}}}
	x.changes = &changes{x, rand.New(rand.NewPCG(seed, 1))}
	plan := processes.Plan{Etcd: 3, Storage: processtest.EnvInt(t, "CHAOS_STORAGE", 4), Gateways: 2, Port: 28700,
		Env: append(slices.Clone(restless), "SPILLWAY_API_ADMIN=true",
			"SPILLWAY_STORAGE_SCRUB_PERIOD=2s")}
	var places []string
	for i := range plan.Etcd {
		places = append(places, fmt.Sprintf("m%d", i+1))
	}
	for i := range plan.Storage {
		places = append(places, fmt.Sprintf("s%d", i+1))
	}
	w, why := tryWires(t, places...)
	if t.Failed() {
		t.FailNow()
	}
	if w != nil {
		plan.Place = func(name string) (string, []string) {
			if w.space[name] == "" { // gateways are where Kafka is
				return w.addr[here], nil
			}
			return w.addr[name], []string{"ip", "netns", "exec", w.space[name]}
		}
	} else {
		plan.Port = 0
		t.Logf("no link is cut: %s", why)
	}
	x.storm = &storm{rng: rand.New(rand.NewPCG(seed, 0)), wires: w}
	last := fmt.Sprintf("s%d", plan.Storage)
	plan.Dir = t.TempDir()
	if why := smallDiskOf(t, filepath.Join(plan.Dir, last)); why == "" {
		x.storm.disk = filepath.Join(plan.Dir, last)
	} else {
		t.Logf("no disk is filled: %s", why)
	}
	if os.Getenv("CHAOS_FAULTS") != "" {
		x.storm.faults = t.TempDir()
		plan.EnvOf = func(name string) []string { return x.storm.faultsOf(t, name) }
	} else {
		t.Log("no fsync fails and no clock jumps: the program is not that of .ci/faults")
	}
	plan.GatewayArgs = x.records.flags()
	if logs := os.Getenv("CHAOS_LOGS"); logs != "" {
		t.Cleanup(func() { // once all are killed
			if t.Failed() {
				if out, err := exec.Command("cp", "-a", plan.Dir, filepath.Join(logs, "data")).CombinedOutput(); err != nil {
					t.Logf("%v: %s", err, out)
				}
			}
		})
		plan.Out = func(name string) io.Writer {
			f, err := os.OpenFile(filepath.Join(logs, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.Close() })
			return f
		}
	}
	x.crowd = newCrowd(t, plan)
	x.storm.c = x.crowd
	_, err := x.view.Tables.Create(t.Context(), "default", topology.Config{PartitionWidth: time.Hour, Replicas: 3, Retention: 24 * time.Hour}) // rows are of the last hours: no clock may make it drop any
	x.must(err)
	x.acks("default", fmt.Sprintf("warm,i=0 v=1 %d", time.Now().UnixMilli()))
	x.healed()
	return x
}

// allowed returns which kinds of blows are possible here and asked for.
func (x *chaos) allowed() func(kind string) bool {
	words := strings.FieldsFunc(os.Getenv("CHAOS_BLOWS"), func(r rune) bool { return r == ',' })
	return func(kind string) bool {
		switch {
		case strings.Contains(kind, "cut") && x.storm.wires == nil, strings.Contains(kind, "disk") && x.storm.disk == "",
			(strings.Contains(kind, "fsync") || strings.Contains(kind, "clock")) && x.storm.faults == "":
			return false
		}
		return len(words) == 0 || slices.ContainsFunc(words, func(w string) bool { return strings.Contains(kind, w) })
	}
}

// begin begins an era: new series.
func (x *chaos) begin() {
	x.end()
	x.era++
	x.senders = nil
	for i := range 4 {
		s := newSender(x.doors[0], i, x.era, time.Now(), rand.New(rand.NewPCG(x.seed, uint64(x.era*10+i))))
		s.doors, s.codes, s.last, s.erases = x.doors, map[int]int{}, time.Now(), true
		x.senders = append(x.senders, s)
	}
	x.records.sent = map[string]map[int64]float64{}
	x.witness = &witness{c: x.crowd, metric: fmt.Sprintf("seen%d", x.era), from: time.Now().Add(-4 * time.Hour).Truncate(time.Minute)}
}

// end adds the figures of an era.
func (x *chaos) end() {
	for _, s := range x.senders {
		x.sum.acked, x.sum.erasures = x.sum.acked+s.acked, x.sum.erasures+s.erasures
		x.sum.took = append(x.sum.took, s.took...)
		for code, n := range s.codes {
			x.sum.codes[code] += n
		}
	}
	x.sum.records, x.senders = x.records.n, nil
}

// load lets all write and read until the returned function was called, and has returned.
func (x *chaos) load() (stop func()) {
	quit := make(chan struct{})
	var all sync.WaitGroup
	for _, s := range x.senders {
		s.last, s.gap, s.slowErase = time.Now(), 0, 0
		all.Go(func() { s.run(quit) })
	}
	all.Go(func() { x.records.produce(x.kafkaMetric(), quit) })
	all.Go(func() { x.witness.write(quit) })
	for _, d := range x.doors {
		all.Go(func() { x.witness.read(d, quit) })
	}
	return func() { close(quit); all.Wait() }
}

func (x *chaos) kafkaMetric() string { return fmt.Sprintf("kafka%d", x.era) }

// round strikes once, heals, and checks.
func (x *chaos) round(i int, allowed func(kind string) bool) {
	x.t.Helper()
	stop := x.load()
	ch := x.changes.next()
	x.changed[ch.kind]++
	time.Sleep(time.Duration(300+x.storm.rng.IntN(700)) * time.Millisecond) // faults come at any moment of a write, a flush or a heartbeat
	b := x.storm.next(allowed)
	x.sum.kills += b.kills
	x.t.Logf("blow %d, %s: %s for %v, amid %s", i+1, time.Now().UTC().Format("15:04:05.000"), b.what, b.lasts.Round(time.Millisecond), cmp.Or(ch.what, "nothing else"))
	time.Sleep(b.lasts) // how long a fault lasts is drawn with it
	b.heal()
	healing := time.Now()
	x.acks("default", fmt.Sprintf("warm,i=%d v=1 %d", i+1, time.Now().UnixMilli()))
	if ch.settle != nil {
		ch.settle()
	}
	x.healed()
	relisted := time.Since(healing)
	x.ackMore(x.senders) // on a whole cluster
	stop()
	x.figures(b, relisted, i)
	x.check(false)
	x.alive(x.All()...)
}

// healed waits until every partition is led, and has three copies by the map, all in sync. One that was made while a server was away has
// a copy less, until the master has added it. One that was split or merged has to be led: its rows begin to move after a minute, and meanwhile the next blows come.
func (x *chaos) healed() {
	x.t.Helper()
	missing := ""
	defer func() {
		if missing != "" {
			x.t.Logf("not in sync: %s", missing)
		}
	}()
	x.within(3*processtest.Patience, "all copies are in sync", func() bool {
		m, _ := x.view.Tables.Get("default")
		for _, p := range x.partitions("default") {
			at, ok := m.ByID(p.ID)
			if leader, _ := x.leader(p); ok && at.State == topology.Unload && leader != "" {
				continue
			}
			if !ok || at.State != topology.Live || len(at.Placements) < 3 || len(at.Joining) > 0 {
				missing = fmt.Sprintf("%v is not there (%t), or is %+v", p, ok, at)
				return false
			}
			if leader, epoch := x.leader(p); leader == "" || len(x.inSync(p)) < 3 {
				missing = fmt.Sprintf("%v, led by %q in epoch %d, list %v", p, leader, epoch, x.inSync(p))
				return false
			}
		}
		missing = ""
		return true
	})
}

// comesAgain are the answers after which no client loses rows: all is kept, or they send it again (Prometheus all of 5xx and 429, OpenTelemetry's exporters these alone).
var comesAgain = map[int]bool{http.StatusOK: true, http.StatusNoContent: true, http.StatusTooManyRequests: true, http.StatusBadGateway: true, http.StatusServiceUnavailable: true, http.StatusGatewayTimeout: true}

// figures keeps the costs of the blow.
func (x *chaos) figures(b blow, relisted time.Duration, i int) {
	w := x.worst[b.kind]
	if w == nil {
		w = &worst{}
		x.worst[b.kind] = w
	}
	stall, erase := time.Duration(0), time.Duration(0)
	for _, s := range x.senders {
		stall, erase = max(stall, s.gap, time.Since(s.last)), max(erase, s.slowErase)
	}
	v := x.witness
	x.t.Logf("blow %d: in sync again %v after healing; longest time without an ack %v, slowest deletion %v; %d answers, %d refused, %d with a warning, slowest %v",
		i+1, relisted.Round(time.Millisecond), stall.Round(time.Millisecond), erase.Round(time.Millisecond), v.answers, v.refused, v.warned, v.slowest.Round(time.Millisecond))
	w.blows, w.stall, w.erase, w.query, w.relisted = w.blows+1, max(w.stall, stall), max(w.erase, erase), max(w.query, v.slowest), max(w.relisted, relisted)
	x.sum.answers, x.sum.refused, x.sum.warned = x.sum.answers+v.answers, x.sum.refused+v.refused, x.sum.warned+v.warned
	for _, wrong := range v.wrong {
		x.t.Error(wrong)
	}
	for _, s := range x.senders {
		for code := range s.codes {
			if !comesAgain[code] {
				x.t.Errorf("a write or deletion was answered %d: clients would not send it again", code)
			}
		}
	}
	v.answers, v.refused, v.warned, v.slowest, v.wrong = 0, 0, 0, 0, nil
}

// settled waits until nothing unloads, and checks all copies.
func (x *chaos) settled() {
	x.t.Helper()
	began := time.Now()
	x.within(10*processtest.Patience, "no partition unloads", func() bool { return len(x.unloading()) == 0 })
	x.healed()
	x.t.Logf("nothing unloads %v after the last blow", time.Since(began).Round(time.Millisecond))
	x.check(true)
}

// unloading are the partitions that were split or merged, and are still there.
func (x *chaos) unloading() (all []*topology.Partition) {
	m, _ := x.view.Tables.Get("default")
	for p := range m.All() {
		if p.State == topology.Unload {
			all = append(all, p)
		}
	}
	return all
}

// check compares the acked rows with those read through each gateway, and with those of each copy; then the copies' segments. While partitions unload their rows are in two of them, and copies are
// not looked at, unless settled.
func (x *chaos) check(settled bool) {
	x.t.Helper()
	x.within(2*processtest.Patience, "all records of Kafka are committed", func() bool {
		return x.records.kafka.Lag(chaosGroup, chaosTopic, chaosPartitions) == 0
	})
	x.within(2*processtest.Patience, "nothing is staged", func() bool { return x.waiting() == 0 })
	at := time.Now().Add(time.Minute)
	for _, d := range x.doors {
		x.answers("default", x.witness.metric+"_v")
		x.compare("through the gateway at "+d.Addr, func(metric string) map[string][]processtest.Sample { return d.Rows(metric, "7h", at) })
	}
	if !settled && len(x.unloading()) > 0 {
		return
	}
	for n := range 3 {
		x.compare(fmt.Sprintf("in copy %d of each partition", n+1), func(metric string) map[string][]processtest.Sample { return x.nth(n, metric) })
	}
	if x.t.Failed() {
		return
	}
	why := ""
	defer func() {
		if why != "" {
			x.t.Log(why)
		}
	}()
	x.within(2*processtest.Patience, "copies have the same segments, and nothing in their heads", func() bool {
		if why = x.equal(); why == "" && !x.shrunk() {
			why = "some have rows in memory, or a log"
		}
		return why == ""
	})
}

// nth returns all rows of a metric, read from the copy with a number of each partition. Copies may move meanwhile: then it looks at the map again.
func (x *chaos) nth(n int, metric string) (all map[string][]processtest.Sample) {
	x.t.Helper()
	x.within(3*processtest.Patience, "copies are sure that they are complete", func() bool {
		of := map[topology.ServerID][]lease.Partition{}
		m, _ := x.view.Tables.Get("default")
		for _, p := range x.partitions("default") {
			if at, ok := m.ByID(p.ID); ok && len(at.Placements) > n {
				s := at.Placements[n].Server
				of[s] = append(of[s], p)
			}
		}
		all = map[string][]processtest.Sample{}
		for server, ps := range of {
			rows, err := x.copyOf(x.t.Context(), server, ps, metric)
			if peer.IsUnsure(err) || fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Stale) {
				return false
			}
			x.must(err)
			for series, more := range rows {
				all[series] = append(all[series], more...)
			}
		}
		return true
	})
	for _, rows := range all {
		slices.SortFunc(rows, func(a, b processtest.Sample) int { return cmp.Compare(a.Ms, b.Ms) })
	}
	return all
}

// compare reports the mistakes in the rows of all writers, read somewhere.
func (x *chaos) compare(where string, rows func(metric string) map[string][]processtest.Sample) {
	x.t.Helper()
	var wrong []string
	for _, s := range x.senders {
		wrong = append(wrong, s.compare(rows(s.metric))...)
	}
	wrong = append(wrong, x.records.compare(x.kafkaMetric(), rows(x.kafkaMetric()+"_v"))...)
	for _, what := range wrong[:min(len(wrong), 40)] {
		x.t.Errorf("%s: %s", where, what)
	}
	if len(wrong) > 40 {
		x.t.Errorf("%s: and %d more", where, len(wrong)-40)
	}
}

// equal returns which segment is not the same, byte for byte, on three servers; "": none.
func (x *chaos) equal() string {
	type file struct {
		path   string
		copies int
	}
	all := map[[sha256.Size]byte]*file{}
	for _, p := range x.Storage {
		unfinished := x.eachSegment(p, func(path string, sum [sha256.Size]byte) {
			if all[sum] == nil {
				all[sum] = &file{path: path}
			}
			all[sum].copies++
		})
		if len(unfinished) > 0 {
			return unfinished[0] + " is not finished"
		}
	}
	for _, f := range all {
		if f.copies != 3 {
			return fmt.Sprintf("%s is on %d servers", f.path, f.copies)
		}
	}
	return ""
}

// failed counts answers that are no ack.
func (t *tally) failed() (n int) {
	for code, times := range t.codes {
		if code/100 != 2 {
			n += times
		}
	}
	return n
}

// quantile sorts durations and returns the one below which a share of them lies.
func quantile(all []time.Duration, share float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(int(share*float64(len(all))), len(all)-1)].Round(time.Millisecond)
}

// record logs the figures of the run.
func (x *chaos) record() {
	x.t.Helper()
	x.t.Logf("%d rows acked, %d records through Kafka, %d deletions, %d times kill -9; %d answers while harm was done, all right, %d refused, %d with a warning",
		x.sum.acked, x.sum.records, x.sum.erasures, x.sum.kills, x.sum.answers, x.sum.refused, x.sum.warned)
	x.t.Logf("%d of %d writes acked, in %v at the median, %v for 99 %%, %v for 99.9 %%, %v at most; answers by status %v; changes beside blows %v, %d refused",
		len(x.sum.took), len(x.sum.took)+x.sum.failed(), quantile(x.sum.took, 0.5), quantile(x.sum.took, 0.99), quantile(x.sum.took, 0.999), quantile(x.sum.took, 1), x.sum.codes, x.changed, x.refused)
	for _, kind := range slices.Sorted(maps.Keys(x.worst)) {
		w := x.worst[kind]
		x.t.Logf("%-28s %4d times; longest without an ack %v, slowest deletion %v, slowest query %v, in sync again %v after healing", kind, w.blows,
			w.stall.Round(time.Millisecond), w.erase.Round(time.Millisecond), w.query.Round(time.Millisecond), w.relisted.Round(time.Millisecond))
	}
	if x.sum.acked == 0 || x.sum.records == 0 || x.sum.answers == 0 {
		x.t.Error("the load was too light to prove anything")
	}
}

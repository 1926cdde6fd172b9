package clustertest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/query/promqlsuite"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterAnswersAsOneProcessWhilePartitionsMove writes the rows of Prometheus' own test scripts, and random ones, to a cluster and to
// one process, and asks both the queries of the scripts and random ones, while partitions of the cluster split, merge and move from server to
// server, and rows are written again. Every answer is the same, or a 503 with its reason. TEST_SEED gives the order of what is asked,
// ANSWERS_FOR how long: rows of a partition that was cut move from a minute after that on.
func TestClusterAnswersAsOneProcessWhilePartitionsMove(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	seed, span := uint64(processtest.EnvInt(t, "TEST_SEED", 1)), processtest.EnvDuration(t, "ANSWERS_FOR", 30*time.Second)
	language := []string{"SPILLWAY_QUERY_EXPERIMENTAL_FUNCTIONS=true", "SPILLWAY_QUERY_UNQUOTED_UTF8_NAMES=true",
		"SPILLWAY_QUERY_FILL_MODIFIERS=true"}
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 4, Gateways: 2, Env: append([]string{unmerged, "SPILLWAY_STORAGE_FLUSH_AGE=1s",
		"SPILLWAY_STORAGE_MINORS_MAX=3", "SPILLWAY_STORAGE_UNLOAD_BYTES_PER_SECOND=64KiB"}, language...)})
	one := processtest.NewOf(t, c.Storage[0].Line[0], language...)
	one.Start()
	c.table("asked", 12*time.Hour, 2)

	rng := rand.New(rand.NewPCG(seed, 1))
	x := &answers{crowd: c, one: one, from: time.Now().Truncate(24 * time.Hour).Add(-14 * 24 * time.Hour), kinds: map[string]int{}}
	queries := x.scripts()
	x.random = x.from.Add(time.Duration(x.sections) * sectionEvery)
	for range 6 {
		x.write(x.randomRows(rng, 60))
	}
	for range len(queries) / 2 {
		queries = append(queries, x.randomQuery(rng))
	}
	rng.Shuffle(len(queries), func(i, j int) { queries[i], queries[j] = queries[j], queries[i] })
	c.within(2*processtest.Patience, "each partition has its copies", c.moved(c.partitions("asked"), 2))
	for _, q := range queries[:50] { // at rest both are the same: what differs below is for what moves
		x.ask(c.doors[0], q)
	}
	x.fatalIfWrong("at rest")

	end := time.Now().Add(span)
	// Longer where the machine is so busy that a kind of change was not accepted yet.
	over := func() bool {
		now := time.Now()
		return !now.Before(end) && (x.changedEnough() || now.After(end.Add(processtest.Patience)))
	}
	var g sync.WaitGroup
	for i, d := range c.doors {
		g.Go(func() {
			for at := i; !over() && !x.wrongEnough(); at = (at + len(c.doors)) % len(queries) {
				x.ask(d, queries[at])
			}
		})
	}
	g.Go(func() {
		rng := rand.New(rand.NewPCG(seed, 2))
		for !over() {
			x.write(x.randomRows(rng, 5))
			time.Sleep(200 * time.Millisecond)
		}
	})
	x.change(rand.New(rand.NewPCG(seed, 3)), over)
	g.Wait()
	t.Logf("TEST_SEED=%d: %d sections of rows, %d queries, %d answered with 503 first (%v); changes %v, %v rows moved",
		seed, x.sections, x.asked, x.busy, x.reasons, x.kinds, c.unloaded())
	x.fatalIfWrong("while partitions move")
	if x.busy > max(20, x.asked/100) {
		t.Errorf("%d of %d queries were answered with 503 first", x.busy, x.asked)
	}
	for _, kind := range changeKinds {
		if x.kinds[kind] == 0 {
			t.Errorf("no %s was accepted", kind)
		}
	}
}

var changeKinds = [...]string{"split", "merge", "move"}

func (x *answers) accepted(kind string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.kinds[kind]++
}

func (x *answers) changedEnough() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !slices.ContainsFunc(changeKinds[:], func(kind string) bool { return x.kinds[kind] == 0 })
}

// sectionEvery is the time between the first rows of two sections of the scripts: a section is their rows between two clear commands.
// Many are longer: then a query finds rows of both.
const sectionEvery = 30 * time.Minute

// sectionMax is the longest time of which a section's rows are written.
const sectionMax = 12 * time.Hour

type answers struct {
	*crowd
	one      *processtest.Process
	from     time.Time
	sections int
	random   time.Time    // where the random rows begin
	writing  sync.RWMutex // held for writing while the two have different rows

	mu          sync.Mutex
	kinds       map[string]int // accepted changes
	asked, busy int
	reasons     []string // of the first 503s
	wrong       []string
}

// asked is a query with its path of the API.
type asked struct {
	path string
	args url.Values
}

func (q asked) String() string {
	if q.path == "query" {
		return fmt.Sprintf("%s at %s", q.args.Get("query"), q.args.Get("time"))
	}
	return fmt.Sprintf("%s from %s to %s by %s", q.args.Get("query"), q.args.Get("start"), q.args.Get("end"), q.args.Get("step"))
}

func (x *answers) instant(expr string, at time.Time) asked {
	return asked{"query", url.Values{"query": {expr}, "time": {stamp(at)}}}
}

func (x *answers) ranged(expr string, from, to time.Time, step time.Duration) asked {
	by := strconv.FormatFloat(step.Seconds(), 'f', 3, 64)
	return asked{"query_range", url.Values{"query": {expr}, "start": {stamp(from)}, "end": {stamp(to)}, "step": {by}}}
}

func stamp(at time.Time) string { return strconv.FormatFloat(float64(at.UnixMilli())/1000, 'f', 3, 64) }

// scripts writes the rows of the scripts and returns their queries.
func (x *answers) scripts() (queries []asked) {
	x.t.Helper()
	for _, path := range promqlsuite.Scripts(x.t) {
		text, err := os.ReadFile(path)
		x.must(err)
		for _, section := range clears.Split(string(text), -1) {
			at := x.from.Add(time.Duration(x.sections) * sectionEvery)
			x.sections++
			x.write(loaded(x.t, section, at))
			queries = append(queries, x.evals(section, at)...)
		}
	}
	return queries
}

// evals returns the queries of a section. from is the time of its first row. Queries whose times are expressions are left out.
func (x *answers) evals(section string, at time.Time) (queries []asked) {
	since := func(text string) (time.Time, bool) {
		d, err := model.ParseDuration(strings.TrimSpace(text))
		return at.Add(time.Duration(d)), err == nil
	}
	for line := range strings.Lines(section) {
		if m := evalInstant.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			if when, ok := since(cmp.Or(m[1], "0s")); ok {
				queries = append(queries, x.instant(m[2], when))
			}
		} else if m := evalRange.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			from, ok1 := since(m[1])
			to, ok2 := since(m[2])
			if step, err := model.ParseDuration(m[3]); ok1 && ok2 && err == nil {
				queries = append(queries, x.ranged(m[4], from, to, time.Duration(step)))
			}
		}
	}
	return queries
}

// The commands of the scripts that matter here.
var (
	clears      = regexp.MustCompile(`(?m)^clear$`)
	loads       = regexp.MustCompile(`(?m)^load.*\n(?:[ \t]+.*\n?)*`)
	evalInstant = regexp.MustCompile(`^eval(?:_\w+)?\s+instant\s+(?:at\s+(\S+)\s+)?(.+)$`)
	evalRange   = regexp.MustCompile(`^eval(?:_\w+)?\s+range\s+from\s+(\S+)\s+to\s+(\S+)\s+step\s+(\S+)\s+(.+)$`)
)

// loaded returns the rows that the load commands of a section make, from a time on.
func loaded(t *testing.T, section string, at time.Time) (rows []prompb.TimeSeries) {
	t.Helper()
	st := promqltest.LoadedStorage(t, strings.Join(loads.FindAllString(section, -1), "\n"))
	q, err := st.Querier(math.MinInt64, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	for set := q.Select(t.Context(), true, nil, labels.MustNewMatcher(labels.MatchRegexp, "__name__", ".*")); set.Next(); {
		s := prompb.TimeSeries{Labels: prompb.FromLabels(set.At().Labels(), nil)}
		it := set.At().Iterator(nil)
		for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
			if it.AtT() > sectionMax.Milliseconds() {
				break
			}
			switch kind {
			case chunkenc.ValFloat:
				ms, v := it.At()
				s.Samples = append(s.Samples, prompb.Sample{Timestamp: ms + at.UnixMilli(), Value: v})
			case chunkenc.ValHistogram:
				ms, h := it.AtHistogram(nil)
				s.Histograms = append(s.Histograms, prompb.FromIntHistogram(ms+at.UnixMilli(), h))
			default:
				ms, h := it.AtFloatHistogram(nil)
				s.Histograms = append(s.Histograms, prompb.FromFloatHistogram(ms+at.UnixMilli(), h))
			}
		}
		rows = append(rows, s)
	}
	if err := errors.Join(q.Close(), st.Close()); err != nil {
		t.Fatal(err)
	}
	return rows
}

// randomRows are rows of the metrics that random queries ask for.
func (x *answers) randomRows(rng *rand.Rand, n int) (rows []prompb.TimeSeries) {
	for range n {
		name, i := fmt.Sprint("m", 1+rng.IntN(2)), fmt.Sprint(rng.IntN(10))
		s := prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: name}, {Name: "i", Value: i}}}
		for range 20 {
			s.Samples = append(s.Samples, prompb.Sample{Timestamp: x.random.UnixMilli() + rng.Int64N(2700)*1000, Value: float64(rng.IntN(1000))})
		}
		rows = append(rows, s)
	}
	return rows
}

func (x *answers) randomQuery(rng *rand.Rand) asked {
	q := processtest.RandomQuery(rng)
	if q.Step == 0 {
		return x.instant(q.Expr, x.random.Add(q.Start))
	}
	return x.ranged(q.Expr, x.random.Add(q.Start), x.random.Add(q.End), q.Step)
}

// write has both acknowledge rows, while no query is under way.
func (x *answers) write(rows []prompb.TimeSeries) {
	if len(rows) == 0 {
		return
	}
	body := processtest.Packed(x.t, (&prompb.WriteRequest{Timeseries: rows}).Marshal)
	x.writing.Lock()
	defer x.writing.Unlock()
	for _, to := range []*processtest.Process{x.one, x.doors[len(body)%len(x.doors)]} {
		for end := time.Now().Add(processtest.Patience); ; time.Sleep(20 * time.Millisecond) {
			status, text, err := to.Do(http.MethodPost, "/t/asked/api/v1/write", http.Header{"Content-Type": {"application/x-protobuf"}}, body)
			if err == nil && status/100 == 2 {
				break
			}
			if time.Now().After(end) || err == nil && status == http.StatusBadRequest {
				x.blame(fmt.Sprintf("a write to %s: %d %.300s %v", to.Addr, status, text, err))
				return
			}
		}
	}
}

// ask asks the process and a gateway the same, and compares the answers.
func (x *answers) ask(d *processtest.Process, q asked) {
	x.writing.RLock()
	defer x.writing.RUnlock()
	want, _ := q.answered(x.one)
	got, busy := q.answered(d)
	x.mu.Lock()
	x.asked++
	if busy != "" {
		if x.busy++; x.busy <= 5 {
			x.reasons = append(x.reasons, busy)
		}
	}
	x.mu.Unlock()
	if diff := want.differs(got); diff != "" {
		x.blame(fmt.Sprintf("%s: %s", q, diff))
	}
}

// answered asks until the answer is another than 503, or none in time, and returns the reason of the first that was.
func (q asked) answered(p *processtest.Process) (a answer, busy string) {
	for end := time.Now().Add(processtest.Patience); ; time.Sleep(20 * time.Millisecond) {
		if a = q.of(p); a.code != 0 && (a.code != http.StatusServiceUnavailable || a.Error == "") || time.Now().After(end) {
			return a, busy
		}
		busy = cmp.Or(busy, a.Error)
	}
}

func (x *answers) blame(what string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wrong = append(x.wrong, what)
}

func (x *answers) wrongEnough() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.wrong) >= 20
}

func (x *answers) fatalIfWrong(when string) {
	x.t.Helper()
	for _, w := range x.wrong {
		x.t.Errorf("%s: %s", when, w)
	}
	if len(x.wrong) > 0 {
		x.fatal(fmt.Sprintf("%s: %d answers differ", when, len(x.wrong)))
	}
}

// answer is what the API says to a query.
type answer struct {
	code                     int
	Status, ErrorType, Error string
	Warnings, Infos          []string
	Data                     struct {
		ResultType string
		Result     any
	}
}

func (q asked) of(p *processtest.Process) (a answer) {
	form := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	code, text, err := p.Do(http.MethodPost, "/t/asked/api/v1/"+q.path, form, []byte(q.args.Encode()))
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	if a.code = code; err != nil {
		a.Error = fmt.Sprintf("%v: %.300s", err, text)
	}
	switch all, ok := a.Data.Result.([]any); {
	case ok && (a.Data.ResultType == "vector" || a.Data.ResultType == "matrix"): // of one time the order is left to chance
		slices.SortStableFunc(all, func(l, r any) int { return strings.Compare(seriesOf(l), seriesOf(r)) })
	}
	return a
}

func seriesOf(one any) string { return fmt.Sprint(one.(map[string]any)["metric"]) } // fmt sorts the keys of maps

// differs says how two answers differ; "" if they do not. The texts of errors name what was found first.
func (a answer) differs(b answer) string {
	switch {
	case a.code != b.code || a.ErrorType != b.ErrorType:
		return fmt.Sprintf("%d %s %s, of the cluster %d %s %s", a.code, a.ErrorType, a.Error, b.code, b.ErrorType, b.Error)
	case !sameNotes(a.Warnings, b.Warnings) || !sameNotes(a.Infos, b.Infos):
		return fmt.Sprintf("notes %q %q, of the cluster %q %q", a.Warnings, a.Infos, b.Warnings, b.Infos)
	case !alike(a.Data.Result, b.Data.Result):
		return fmt.Sprintf("%v, of the cluster %v", a.Data.Result, b.Data.Result)
	}
	return ""
}

func sameNotes(a, b []string) bool {
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// alike compares parts of answers; numbers may differ by the order in which they were added.
func alike(a, b any) bool {
	switch a := a.(type) {
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, alike)
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, alike)
	case string:
		b, ok := b.(string)
		if !ok || a == b {
			return ok
		}
		va, errA := strconv.ParseFloat(a, 64)
		vb, errB := strconv.ParseFloat(b, 64)
		return errA == nil && errB == nil && math.Abs(va-vb) <= 1e-9*max(math.Abs(va), math.Abs(vb), 1e-3)
	}
	return a == b
}

// change splits, merges and moves partitions, one request after the other, until over says so.
func (x *answers) change(rng *rand.Rand, over func() bool) {
	x.t.Helper()
	for n := 0; !over() && !x.wrongEnough(); n++ {
		m, _ := x.view.Tables.Get("asked")
		var lives []*topology.Partition
		for p := range m.All() {
			if p.State == topology.Live {
				lives = append(lives, p)
			}
		}
		p := oneOf(rng, lives)
		var kind string
		var args []string
		switch at := rng.IntN(3); {
		case at == 0 && len(lives) < 40:
			kind, args = "split", []string{fmt.Sprint("p", p.ID), "--at", []string{"time-middle", "ring-middle"}[rng.IntN(2)]}
		case at == 1:
			of := mergeable(rng, lives)
			if of == nil {
				continue
			}
			kind, args = "merge", of
		default:
			on, to := x.placesOf(lease.Partition{Table: "asked", ID: p.ID})
			kind, args = "move", []string{fmt.Sprint("p", p.ID), "--from=" + string(oneOf(rng, on)), "--to=" + string(to)}
		}
		if _, err := x.try(append([]string{"partition", kind, "asked"}, append(args, "--reason=test")...)...); err == nil {
			x.accepted(kind)
		} else {
			x.accepted("refused")
		}
	}
}

// mergedAfter is longer than after the end of its time a partition is closed (master.Settings.ClosedAfter).
const mergedAfter = 61 * time.Minute

// mergeable returns the names of two neighbouring partitions that have ended; nil if there are none.
func mergeable(rng *rand.Rand, lives []*topology.Partition) []string {
	var pairs [][2]*topology.Partition
	for _, a := range lives {
		for _, b := range lives {
			inTime := a.TimeHi == b.TimeLo && a.PointLo == b.PointLo && a.PointHi == b.PointHi
			onRing := a.PointHi == b.PointLo && a.PointHi != 0 && a.TimeLo == b.TimeLo && a.TimeHi == b.TimeHi
			if (inTime || onRing) && b.TimeHi < time.Now().Add(-mergedAfter).UnixNano() && a != b {
				pairs = append(pairs, [2]*topology.Partition{a, b})
			}
		}
	}
	if len(pairs) == 0 {
		return nil
	}
	of := oneOf(rng, pairs)
	return []string{fmt.Sprint("p", of[0].ID), fmt.Sprint("p", of[1].ID)}
}

func oneOf[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }

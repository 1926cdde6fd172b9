package process

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestCorruptionsLoseNothingInSilence damages a store that a real process wrote, one harm at a time: a bit, a page, a
// missing end, an old version, of a file of every kind, while the store is closed and while it is served from. Then it
// starts the store, twice, and compares every answer with the acked rows. A start may be refused and a query may be
// answered with an error or a warning, if a person can understand it; rows may be there. An answer without a warning that
// lacks rows, or has rows that were never written or were deleted, fails; so do a panic, a hang, a message with a stack,
// and a segment or log file that was deleted.
//
//	CORRUPT_N      how many cases, default 24
//	TEST_SEED      decides the harm of each case
//	CORRUPT_CASE   only this one
//	CORRUPT_TWICE  1 damages the catalogue's mirror as well before a repair
//	CORRUPT_WORLD  where the stores lie, to try a case again on the very bytes; made there when it does not exist
func TestCorruptionsLoseNothingInSilence(t *testing.T) {
	n, seed := processtest.EnvInt(t, "CORRUPT_N", 24), uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	if testing.Short() {
		t.Skip("stores are corrupted in the long run of the tests")
	}
	run := newCorruptRun(t, seed)
	first, last := 0, n
	if only := processtest.EnvInt(t, "CORRUPT_CASE", -1); only >= 0 {
		first, last = only, only+1
	}
	began := time.Now()
	run.all(first, last)
	run.print(time.Since(began))
}

// corruptRun hands cases out to worker processes.
type corruptRun struct {
	t     *testing.T
	seed  uint64
	bin   string
	world string
	keep  string

	mu      sync.Mutex
	results []corruptResult
}

func newCorruptRun(t *testing.T, seed uint64) *corruptRun {
	r := &corruptRun{t: t, seed: seed, bin: processtest.Program(t), world: os.Getenv("CORRUPT_WORLD")}
	if r.world == "" {
		r.world = filepath.Join(t.TempDir(), "world")
	} else {
		r.keep = filepath.Join(r.world, "failed")
	}
	if _, err := os.Stat(r.world); err != nil {
		buildCorruptWorld(t, r.bin, r.world)
	}
	return r
}

// all tries the cases [first, last).
func (r *corruptRun) all(first, last int) {
	cases := make(chan int)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), last-first) {
		wg.Go(func() {
			w := &corruptWorker{run: r}
			defer w.end()
			for c := range cases {
				res := w.try(c)
				r.mu.Lock()
				r.results = append(r.results, res)
				r.mu.Unlock()
				if res.failed() {
					r.fail(res)
				}
			}
		})
	}
	for c := first; c < last; c++ {
		cases <- c
	}
	close(cases)
	wg.Wait()
}

// fail prints the failure and one line to paste.
func (r *corruptRun) fail(res corruptResult) {
	world := r.world
	if r.keep == "" {
		world = "DIR"
	}
	r.t.Errorf("%s: case %d, %s store, %s: %s\n\t%.3000s\n\tCORRUPT_WORLD=%s CORRUPT_CASE=%d TEST_SEED=%d go test -count=1 -run %s ./cmd/spillway/process",
		res.Outcome, res.Case, res.Base, res.Mode, res.Harm, res.Said, world, res.Case, r.seed, r.t.Name())
}

// print prints the outcomes by kind of file and by kind of harm.
func (r *corruptRun) print(took time.Duration) {
	r.t.Logf("%d corruptions in %s, TEST_SEED=%d\n%s\n%s\n%s", len(r.results), took.Round(time.Second), r.seed,
		r.table("file", func(x corruptResult) string { return x.Harm.Kind }), r.table("corruption", func(x corruptResult) string { return x.Harm.Name }),
		r.table("repair", func(x corruptResult) string { return cmp.Or(x.Repaired, "not tried") }))
	for _, x := range r.results {
		if x.failed() { // once more, where the end of a long output is read
			r.t.Logf("%s: case %d, %s store, %s: %s\n\t%.600s", x.Outcome, x.Case, x.Base, x.Mode, x.Harm, x.Said)
		}
	}
	if r.keep == "" {
		return
	}
	slices.SortFunc(r.results, func(a, b corruptResult) int { return a.Case - b.Case })
	var b strings.Builder
	for _, x := range r.results {
		fmt.Fprintf(&b, "%d\t%s\t%s\t%s\t%s\t%q\n", x.Case, x.Outcome, x.Base, x.Mode, x.Harm, x.Said)
	}
	if err := os.WriteFile(filepath.Join(r.world, "results.txt"), []byte(b.String()), 0o600); err != nil {
		r.t.Error(err)
	}
}

// table counts outcomes by a property of the cases, as Markdown.
func (r *corruptRun) table(what string, of func(corruptResult) string) string {
	counts, outcomes := map[string]map[string]int{}, map[string]bool{}
	for _, x := range r.results {
		if counts[of(x)] == nil {
			counts[of(x)] = map[string]int{}
		}
		counts[of(x)][x.Outcome]++
		outcomes[x.Outcome] = true
	}
	columns := slices.Sorted(maps.Keys(outcomes))
	var b strings.Builder
	fmt.Fprintf(&b, "\n| %s | %s |\n|---|%s\n", what, strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "| %s |", k)
		for _, c := range columns {
			fmt.Fprintf(&b, " %d |", counts[k][c])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// caseMax is how long a case may last. Two starts, and everything read, use a fraction of a second of a processor; where others have the processors that
// lasts for minutes.
const caseMax = 2 * processtest.Patience

// binaryShare: one in so many cases runs the program itself instead of its parts within a worker.
const binaryShare = 25

// corruptWorker is a process that tries one case after the other, and is started again when one ended it.
type corruptWorker struct {
	run     *corruptRun
	cmd     *exec.Cmd
	orders  io.WriteCloser
	results *os.File
	lines   *bufio.Scanner
	said    *lockedText
}

func (w *corruptWorker) start() error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer write.Close()
	w.cmd, w.said = exec.Command(os.Args[0], "-test.run=^TestCorruptWorker$", "-test.timeout=0"), &lockedText{}
	w.cmd.Env, w.cmd.Stderr, w.cmd.Stdout, w.cmd.ExtraFiles = append(processtest.Environ(), "CORRUPT_WORKER=1"), w.said, w.said, []*os.File{write}
	if w.orders, err = w.cmd.StdinPipe(); err != nil {
		return err
	}
	w.results, w.lines = read, bufio.NewScanner(read)
	w.lines.Buffer(nil, 1<<20)
	return w.cmd.Start()
}

// try lets a worker run a case. If the worker dies or hangs, that is the outcome.
func (w *corruptWorker) try(c int) corruptResult {
	last := corruptResult{Case: c, Outcome: "HARNESS"}
	if w.cmd == nil {
		if err := w.start(); err != nil {
			last.Said = err.Error()
			return last
		}
	}
	o := corruptOrder{World: w.run.world, Seed: w.run.seed, Case: c, Keep: w.run.keep, Twice: os.Getenv("CORRUPT_TWICE") != ""}
	if c%binaryShare == 0 {
		o.Binary = w.run.bin
	}
	text, _ := json.Marshal(o)
	w.said.reset()
	if _, err := w.orders.Write(append(text, '\n')); err != nil {
		last.Said = err.Error()
		return last
	}
	hung := false
	watch := time.AfterFunc(caseMax, func() {
		hung = true
		_ = w.cmd.Process.Signal(syscall.SIGQUIT)
	})
	defer watch.Stop()
	for w.lines.Scan() {
		if err := json.Unmarshal(w.lines.Bytes(), &last); err != nil {
			last.Said = err.Error()
			return last
		}
		if last.Outcome != begun {
			return last
		}
	}
	w.end()
	last.Outcome, last.Said = "PANIC", w.said.death()
	if hung {
		last.Outcome = "HANG"
	}
	return last
}

// end ends the process, if there is one.
func (w *corruptWorker) end() {
	if w.cmd != nil {
		_ = w.orders.Close()
		_ = w.cmd.Wait()
		_ = w.results.Close()
		w.cmd = nil
	}
}

// lockedText is the output of a process.
type lockedText struct {
	mu sync.Mutex
	b  []byte
}

// Write implements io.Writer.
func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, b...)
	return len(b), nil
}

func (l *lockedText) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = nil
}

// String returns everything.
func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}

// death returns a worker's message about its end: a panic's message comes before its stacks.
func (l *lockedText) death() string {
	text := l.String()
	for _, mark := range []string{"panic: ", "fatal error: ", "SIGQUIT"} {
		if i := strings.Index(text, mark); i >= 0 {
			return text[i:min(len(text), i+6000)]
		}
	}
	return text[:min(len(text), 6000)]
}

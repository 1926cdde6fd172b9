package process

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/verify"
	"github.com/spillwaydb/spillway/protocols/setting"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
)

// corruptOrder is an order to a worker.
type corruptOrder struct {
	World  string
	Seed   uint64
	Case   int
	Binary string // to run instead of opening the store in this process; empty: in this process
	Keep   string // directory for failed cases
	Twice  bool   // damage the catalogue's mirror, too, before a repair
}

// corruptResult is the outcome of an order.
type corruptResult struct {
	Case int
	Harm harm
	Base string
	Mode string
	// Repaired is how a refused catalogue was rebuilt: exactly, of what there is, lossy; or that a refused coordination
	// store was moved away; "": not tried.
	Repaired string
	Outcome  string // intact, reported, refused; or a failure, in capitals
	Said     string
}

func (r corruptResult) failed() bool { return r.Outcome == strings.ToUpper(r.Outcome) }

// TestCorruptWorker is the process in which stores are opened: a failure that ends it would have ended a server. It reads
// orders and writes results, and does nothing in an ordinary run of the tests.
func TestCorruptWorker(t *testing.T) {
	if os.Getenv("CORRUPT_WORKER") == "" {
		t.Skip("only a worker of TestCorruptionsLoseNothingInSilence")
	}
	out := json.NewEncoder(os.NewFile(3, "results"))
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var o corruptOrder
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			t.Fatal(err)
		}
		w := &corruptTrial{order: o, client: &http.Client{Transport: &http.Transport{}}} // caseMax bounds each wait
		if err := out.Encode(w.run(func(r corruptResult) { _ = out.Encode(r) })); err != nil {
			t.Fatal(err)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

// corruptTrial is one case.
type corruptTrial struct {
	order  corruptOrder
	client *http.Client
	dir    string
	want   corruptAnswers
	result corruptResult
	log    bytes.Buffer
}

// begun is the outcome of an unfinished case: it remains if a worker dies.
const begun = "begun"

// run runs a case; all its choices follow from seed and number.
func (w *corruptTrial) run(begin func(corruptResult)) corruptResult {
	rng := rand.New(rand.NewPCG(w.order.Seed, uint64(w.order.Case)))
	bases := []string{"clean", "killed"}
	old := []string{"early", "late"}
	base := bases[rng.IntN(2)]
	if base == "clean" {
		old = append(old, "killed")
	}
	for i := range old {
		old[i] = filepath.Join(w.order.World, old[i])
	}
	modes := []string{"closed", "closed", "closed", "running"}
	w.result = corruptResult{Case: w.order.Case, Base: base, Mode: modes[rng.IntN(len(modes))]}
	fail := func(err error) corruptResult {
		w.result.Outcome, w.result.Said = "HARNESS", err.Error()
		return w.result
	}
	text, err := os.ReadFile(filepath.Join(w.order.World, base+".json"))
	if err == nil {
		err = json.Unmarshal(text, &w.want)
	}
	if err != nil {
		return fail(err)
	}
	if w.dir, err = os.MkdirTemp(corruptTemp(), "corrupt"); err != nil {
		return fail(err)
	}
	defer func() {
		if w.result.failed() && w.order.Keep != "" {
			_ = os.CopyFS(filepath.Join(w.order.Keep, strconv.Itoa(w.order.Case)), os.DirFS(w.dir))
		}
		_ = os.RemoveAll(w.dir)
	}()
	if err := os.CopyFS(w.dir, os.DirFS(filepath.Join(w.order.World, base))); err != nil {
		return fail(err)
	}
	if w.result.Mode == "running" {
		return w.running(rng, old, begin)
	}
	if w.result.Harm, err = plot(rng, w.dir, old); err != nil {
		return fail(err)
	}
	begin(w.begun())
	seen := ""
	if rng.IntN(3) == 0 {
		seen = w.verify()
	}
	w.lives(rng)
	if (w.result.Outcome == "reported" || w.result.Outcome == "refused") && seen == verify.FileOK {
		w.note("VERIFY BLIND", "`spillway verify` found the store whole, and it was "+w.result.Outcome+": "+w.result.Said)
	}
	return w.result
}

// verify verifies the store: nothing may change.
func (w *corruptTrial) verify() (worst string) {
	before := w.sums()
	v, err := verify.Examine(context.Background(), Rehearsal{}, w.dir)
	if err != nil {
		w.note("VERIFY FAILED", err.Error())
	}
	if after := w.sums(); !slices.Equal(before, after) {
		w.note("VERIFY CHANGED", fmt.Sprintf("%d files became %d", len(before), len(after)))
	}
	return v.Worst("")
}

func (w *corruptTrial) begun() corruptResult {
	r := w.result
	r.Outcome = begun
	return r
}

// corruptTemp is the directory for stores under trial: in memory where possible, since power failures are not tested.
func corruptTemp() string {
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// running harms the store under a process that serves from it, queries it, and starts it again.
func (w *corruptTrial) running(rng *rand.Rand, old []string, begin func(corruptResult)) corruptResult {
	begin(w.begun())
	p, err := w.open()
	if err != nil {
		w.result.Outcome, w.result.Said = "HARNESS", "whole store: "+err.Error()
		return w.result
	}
	if rng.IntN(2) == 0 {
		w.ask(p.base) // caches are warm
	}
	w.result.Harm, err = plot(rng, w.dir, old)
	for range 100 { // the process renames and deletes its files meanwhile
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
		w.result.Harm, err = plot(rng, w.dir, old)
	}
	if err != nil {
		w.result.Outcome, w.result.Said = "HARNESS", errors.Join(err, p.stop()).Error()
		return w.result
	}
	begin(w.begun())
	w.ask(p.base)
	err = p.stop()
	if w.result.Outcome == "NO ANSWER" && err != nil { // it found the damage and ended by itself amid the queries: its reason is judged instead
		w.result.Outcome, w.result.Said = "intact", ""
	}
	w.ended(err)
	if !w.result.failed() {
		w.lives(rng)
	}
	return w.result
}

// ended judges how a serving process ended: its error may report the damage, and has to be clear.
func (w *corruptTrial) ended(err error) {
	if err != nil && !w.result.failed() {
		said := err.Error()
		if at := strings.LastIndex(said, "\nspillway: "); at >= 0 { // the lines before it are of when it was ready
			said = said[at+1:]
		}
		w.note("reported", said)
	}
}

// lives starts the store, reads it, and does so again: no action of the first start may lose data.
func (w *corruptTrial) lives(rng *rand.Rand) {
	before := w.sums()
	for life := range 2 {
		p, err := w.open()
		if err != nil {
			w.note("refused", err.Error())
			w.kept(before, true)
			w.repair(rng, before)
			return
		}
		w.ask(p.base)
		if life == 0 && rng.IntN(2) == 0 {
			w.probe(p.base)
		}
		w.ended(p.stop())
		w.kept(before, false)
		if w.result.failed() {
			return
		}
	}
}

// repair follows the advice of a refusal over the catalogue or the coordination store. Afterwards all rows of segments
// and log are there, and deleted ones are not, unless the repair reports a loss.
func (w *corruptTrial) repair(rng *rand.Rand, before []corruptSum) {
	switch kind := w.result.Harm.Kind; {
	case w.result.failed():
		return
	case strings.HasPrefix(kind, "coord/"):
		if err := os.Rename(filepath.Join(w.dir, "coord"), filepath.Join(w.dir, "coord.damaged")); err != nil {
			w.note("HARNESS", err.Error())
			return
		}
		w.result.Repaired = "moved away"
	case strings.HasPrefix(kind, "catalogue/"):
		if w.result.Repaired = w.rebuild(rng); w.result.failed() {
			return
		}
	default:
		return
	}
	p, err := w.open()
	if err != nil {
		w.note("REPAIR IN VAIN", w.result.Repaired+": "+err.Error())
		return
	}
	refused := w.result
	w.result.Outcome, w.result.Said = "", ""
	w.ask(p.base)
	w.probe(p.base)
	w.ended(p.stop())
	w.kept(before, false)
	switch {
	case w.result.failed():
		w.result.Outcome, w.result.Said = "AFTER REPAIR: "+w.result.Outcome, w.result.Repaired+": "+w.result.Said
	case w.result.Outcome == "reported" && w.result.Repaired != "exactly" && strings.Contains(w.result.Said, "the store was rebuilt on"):
		w.result = refused // users are warned
	case w.result.Outcome != "intact" && w.result.Repaired != "lossy":
		w.note("REPAIR INCOMPLETE", w.result.Repaired+": "+w.result.Said)
	default:
		w.result = refused
	}
}

// rebuild repairs the catalogue, and returns how it went.
func (w *corruptTrial) rebuild(rng *rand.Rand) string {
	cfg, err := w.config()
	if err == nil && w.order.Twice {
		err = os.Truncate(filepath.Join(w.dir, "catalogue.mirror"), int64(rng.IntN(4000)))
	}
	if err != nil {
		w.note("HARNESS", err.Error())
		return ""
	}
	r, err := server.Repair(brick.Deps{FS: vfs.Default, Log: slog.New(slog.DiscardHandler)}, cfg.ForBrick(), false)
	switch {
	case err != nil:
		w.note("REPAIR REFUSED", err.Error()+"; after: "+w.result.Said)
		return ""
	case r.Lossy():
		return "lossy"
	case r.Exact:
		return "exactly"
	}
	return "of what there is"
}

// corruptRank orders outcomes: the worst one counts.
var corruptRank = []string{"", "intact", "reported", "refused"}

// note keeps the worst outcome, and checks that a person can use the message.
func (w *corruptTrial) note(outcome, said string) {
	if w.result.failed() && w.result.Outcome != "" {
		return
	}
	if slices.Index(corruptRank, outcome) > slices.Index(corruptRank, w.result.Outcome) || outcome == strings.ToUpper(outcome) {
		w.result.Outcome, w.result.Said = outcome, said
	}
	if said != "" && !w.result.failed() {
		why := unclear(said)
		if outcome == "refused" && why == "" && !advice.MatchString(said) {
			why = "it does not say what to do"
		}
		if why != "" {
			w.result.Outcome, w.result.Said = "UNCLEAR", why+": "+said
		}
	}
}

var stack = regexp.MustCompile(`goroutine \d|\.go:\d+|(?m)^\s+\w+\(0x|runtime error|panic`)

// advice matches a message that advises a person.
var advice = regexp.MustCompile(`(?i)restore|repair|copy |spillway verify|data_dir right|log_dir changed`)

// unclear returns why a person at night could not use a message.
func unclear(said string) string {
	switch {
	case stack.MatchString(said):
		return "it shows the program's stack"
	case len(said) > 4000:
		return fmt.Sprintf("it has %d bytes", len(said))
	case strings.Count(said, "\n") > 10:
		return fmt.Sprintf("it has %d lines", strings.Count(said, "\n"))
	case strings.TrimSpace(said) == "":
		return "it is empty"
	}
	return ""
}

// ask reads every row and judges the answers. If a whole table cannot be read, it asks for each day alone.
func (w *corruptTrial) ask(base string) {
	for _, table := range corruptTables {
		want, ok := w.want[table]
		if !ok || w.result.Outcome != "" && w.result.failed() {
			continue
		}
		if w.judge(base, table, want, -1<<63, 1<<63-1) {
			continue
		}
		for _, day := range want.days() {
			w.judge(base, table, want, day, day+24*3600_000-1)
		}
	}
}

// judge asks for a stretch of a table and reports whether it was answered.
func (w *corruptTrial) judge(base, table string, want corruptRows, lo, hi int64) bool {
	got, said, err := askCorrupt(w.client, base, table, lo, hi)
	if err != nil {
		w.note("NO ANSWER", fmt.Sprintf("table %s: %v", table, err))
		return true
	}
	if d := want.differ(got, lo, hi, said != ""); d != "" {
		w.note("SILENT LOSS", fmt.Sprintf("table %s, answered without a warning: %s", table, d))
		return true
	}
	if said != "" {
		w.note("reported", said)
		return false
	}
	w.note("intact", "")
	return true
}

// days returns the starts of the days in which a table has rows.
func (r corruptRows) days() []int64 {
	seen := map[int64]bool{}
	for _, rows := range r.Series {
		for _, x := range rows {
			seen[x.Ms-x.Ms%(24*3600_000)] = true
		}
	}
	var out []int64
	for d := range seen {
		out = append(out, d)
	}
	slices.Sort(out)
	return out
}

// probe writes a row to each table; if it is acked it has to be there from then on.
func (w *corruptTrial) probe(base string) {
	for _, table := range corruptTables {
		want, ok := w.want[table]
		if !ok || w.result.failed() {
			continue
		}
		ms := want.days()[1] + 23*3600_000 // a time of no other row
		body := fmt.Sprintf("probe,case=c hits=%d %d\n", w.order.Case, ms)
		answer, err := w.client.Post(base+"/write?db="+table+"&precision=ms", "text/plain", strings.NewReader(body))
		if err != nil {
			w.note("NO ANSWER", fmt.Sprintf("a write to %s: %v", table, err))
			return
		}
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		switch {
		case answer.StatusCode == http.StatusNoContent:
			series := map[string][]corruptRow{`probe_hits{case="c"}`: {{ms, fmt.Sprintf("%q", strconv.Itoa(w.order.Case))}}}
			for k, v := range want.Series {
				series[k] = v
			}
			want.Series = series
			w.want[table] = want
		case answer.StatusCode/100 == 5:
			w.note("reported", string(text))
		default:
			w.note("WRITE REFUSED", fmt.Sprintf("a good row for table %s: %d %.300s", table, answer.StatusCode, text))
		}
	}
	w.ask(base)
}

// corruptSum is a file at one time: its name, size and checksum.
type corruptSum struct {
	name string
	size int64
	sum  uint64
}

// sums reads the files that hold rows.
func (w *corruptTrial) sums() (out []corruptSum) {
	names, _ := corruptFiles(w.dir)
	for _, n := range names {
		if b, err := os.ReadFile(filepath.Join(w.dir, n)); err == nil {
			h := fnv.New64a()
			_, _ = h.Write(b)
			out = append(out, corruptSum{n, int64(len(b)), h.Sum64()})
		}
	}
	return out
}

// kept checks that files a person could still use are there: segments after every start, log files after a refusal. They
// may have been moved within the store.
func (w *corruptTrial) kept(before []corruptSum, refused bool) {
	if w.result.failed() {
		return
	}
	have := map[uint64]bool{}
	for _, s := range w.sums() {
		have[s.sum] = true
	}
	for _, s := range before {
		segment, log := strings.HasSuffix(s.name, ".seg"), strings.HasPrefix(s.name, "log/") && strings.HasSuffix(s.name, ".log")
		if s.size > 0 && !have[s.sum] && (segment || log && refused) {
			w.note("DELETED", fmt.Sprintf("%s with %d bytes is gone; the outcome was %s: %s", s.name, s.size, w.result.Outcome, w.result.Said))
			return
		}
	}
}

// corruptServer is a serving store.
type corruptServer struct {
	base string
	stop func() error
}

// open starts the store, in this process or in a new one; its error is the text a person would read.
func (w *corruptTrial) open() (*corruptServer, error) {
	w.client.CloseIdleConnections()
	if w.order.Binary != "" {
		return w.openBinary()
	}
	cfg, err := w.config()
	if err != nil {
		return nil, err
	}
	w.log.Reset()
	ctx, cancel := context.WithCancel(context.Background())
	p, err := openStandalone(ctx, cfg, slog.New(slog.NewTextHandler(&w.log, nil)), prometheus.NewRegistry())
	if err != nil {
		cancel()
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- errors.Join(p.run(ctx), p.close()) }()
	return &corruptServer{"http://" + p.listener.Addr().String(), func() error {
		w.client.CloseIdleConnections()
		cancel()
		err := <-done
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		return err
	}}, nil
}

// config returns the settings of stores that are opened in this process: nothing is flushed or compacted.
func (w *corruptTrial) config() (*config, error) {
	cfg := config{Config: settings.Default()}
	cfg.DataDir, cfg.HTTP.Listen, cfg.Admin.Listen, cfg.API.Admin = w.dir, "127.0.0.1:0", "", true
	cfg.Storage.MemoryBytes, cfg.Storage.FreeBytesMin = 512<<20, 1
	cfg.Tables.PartitionWidth = setting.Span(24 * time.Hour)
	cfg.Storage.FlushAge, cfg.Storage.FlushIdle, cfg.Storage.MinorsMax = setting.Span(10*time.Hour), setting.Span(10*time.Hour), 1000
	return &cfg, cfg.Complete()
}

// announced matches the program's announcement of its address.
var announced = regexp.MustCompile(`remote_write\s+(http://\S+)/api/v1/write`)

// openBinary starts the program itself, on a port that it chooses.
func (w *corruptTrial) openBinary() (*corruptServer, error) {
	said := &lockedText{}
	cmd := exec.Command(w.order.Binary, "standalone", "--data-dir="+w.dir, "--http.listen=127.0.0.1:0", "--admin.listen=", "--log.level=error")
	cmd.Env, cmd.Stderr = corruptEnviron(false), said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var base []string
	for base == nil {
		select {
		case err := <-done:
			text := said.String()
			if i := strings.LastIndex(text, "\nspillway: "); i >= 0 && !stack.MatchString(text) {
				text = text[i+1:]
			}
			return nil, fmt.Errorf("%s (%w)", text, err)
		case <-time.After(5 * time.Millisecond):
		}
		base = announced.FindStringSubmatch(said.String())
	}
	return &corruptServer{base[1], func() error {
		w.client.CloseIdleConnections()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := <-done; err != nil {
			return fmt.Errorf("%.3000s (%w)", said.String(), err)
		}
		return nil
	}}, nil
}

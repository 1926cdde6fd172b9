package fanout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// world is a table of three partitions, each a hundred nanoseconds wide, on three servers.
type world struct {
	t      *testing.T
	source *Source

	mu      sync.Mutex
	m       *topology.Map
	newest  *topology.Map                           // the result of a refresh; nil: m
	leads   map[point.PartitionID]topology.ServerID // in the gateway's cache
	truth   map[point.PartitionID]topology.ServerID // at the servers
	guesses map[point.PartitionID]bool              // of leads, those of partitions that were never led
	changed chan struct{}
	servers map[topology.ServerID]*storage
}

// storage is one server: it answers for partitions that it leads, and may fail in several ways.
type storage struct {
	*querytest.Store
	w       *world
	id      topology.ServerID
	mute    bool  // it does not answer until the caller ends the call
	breaks  error // it sends one series and then this
	asked   int
	staged  *querytest.Store // the rows that wait there
	cuts    int              // deletions in them
	keeps   error            // of deletions in its partitions
	marked  int              // questions for their watermark
	away    error            // its answer to them
	freezes bool             // it has no answer to them until the caller ends the call
	slow    time.Duration    // how long it needs to read them
	refuses error            // its answer to a read of them
	old     bool             // it knows no holds, and no limit of series
	books   int64            // the bytes of a list of values, booked as a connection books an arriving answer
	did     []string         // deletions, holds and releases
}

// StagedStats implements peer.StagedCounter: rows at 7 s that came at 1,000 s.
func (s *storage) StagedStats(ctx context.Context, _ string) (*peer.Stats, error) {
	if s.freezes {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.away != nil || s.staged == nil {
		return &peer.Stats{}, s.away
	}
	s.marked++
	return &peer.Stats{MinTime: 7e9, MaxTime: 7e9, Staged: []peer.StagedStats{{Server: string(s.id), Rows: 1, Oldest: 1000e9}}}, nil
}

// StagedTimes implements peer.StagedRanger: rows at 7 s.
func (s *storage) StagedTimes(ctx context.Context, _ string) (lo, hi point.Nanos, err error) {
	if s.slow > 0 {
		late := time.NewTimer(s.slow)
		defer late.Stop()
		select {
		case <-late.C:
		case <-ctx.Done():
			return 0, 0, fault.Wrap(ctx.Err(), fault.Canceled, "times")
		}
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.away != nil || s.staged == nil {
		return math.MaxInt64, math.MinInt64, s.away
	}
	return 7e9, 7e9, nil
}

func (s *storage) DeleteSeries(ctx context.Context, q *peer.Select) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	note := func(what string) { s.did = append(s.did, what) }
	switch q.Copies {
	case peer.StagedHolds:
		if s.old {
			return fault.Errorf(fault.Invalid, "copies of kind 5")
		}
		note("hold")
		return s.away
	case peer.StagedRenewals:
		note("renew")
		return s.away
	case peer.StagedReleases:
		note("release")
		return s.away
	case peer.StagedDeletes:
	default:
		if s.keeps != nil {
			return s.keeps
		}
		note("partitions")
		return s.Store.DeleteSeries(ctx, q)
	}
	if s.cuts++; q.Hold != 0 {
		note("staged, held")
	} else {
		note("staged")
	}
	if s.away != nil || s.staged == nil {
		return s.away
	}
	return s.staged.DeleteSeries(ctx, q)
}

func newWorld(t *testing.T) *world {
	m, err := topology.New("t", topology.Config{PartitionWidth: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, changed: make(chan struct{}), servers: map[topology.ServerID]*storage{},
		leads: map[point.PartitionID]topology.ServerID{1: "n1", 2: "n2", 3: "n3"}, truth: map[point.PartitionID]topology.ServerID{1: "n1", 2: "n2", 3: "n3"},
	}
	w.m = m.Cover([]point.Nanos{0, 1e9, 2e9}, func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: 1, Server: w.truth[p]}}
	})
	for i, id := range []topology.ServerID{"n1", "n2", "n3"} {
		s := &storage{Store: querytest.NewStore(), w: w, id: id}
		w.servers[id] = s
		b := point.GetBatch(point.NewDict(0))
		for series := range 3 {
			b.Append(querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m", "i", fmt.Sprint(series))), int64(i)*1e9, float64(i))
		}
		if err := querytest.Inserter(s.Store, "t", point.PartitionID(i+1))(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	w.source = New(Deps{Tables: w, Leaders: w, Servers: w, Log: slog.New(slog.DiscardHandler)}, Settings{})
	return w
}

func (w *world) Get(name string) (*topology.Map, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.m, name == "t"
}

func (w *world) Refresh(context.Context, string, uint64) (*topology.Map, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.newest != nil {
		w.m = w.newest
	}
	return w.m, nil
}

func (w *world) Learn(ctx context.Context, name string, _ peer.MapAt) (*topology.Map, error) {
	return w.Refresh(ctx, name, 0)
}

func (w *world) Newest(string) (peer.MapAt, bool) {
	return peer.MapAt{Txn: peer.TxnID{1}, Seq: w.m.Seq, Servers: []string{"n1", "n2", "n3"}}, true
}

func (w *world) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

func (w *world) Find(table string, p *topology.Partition, _ int) (leaders.Lead, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.leads[p.ID]; s != "" {
		return leaders.Lead{Server: s, Guess: w.guesses[p.ID]}, nil
	}
	return leaders.Lead{}, fault.Errorf(fault.Unavailable, "nobody leads partition %s/%d", table, p.ID)
}

func (w *world) Server(id topology.ServerID) (peer.Storage, bool) {
	s, ok := w.servers[id]
	return s, ok
}

func (w *world) All() []topology.ServerID { return []topology.ServerID{"n1", "n2", "n3"} }

// change changes the gateway's maps and leaders.
func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (s *storage) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	if q.Copies == peer.StagedRows {
		if s.slow > 0 {
			late := time.NewTimer(s.slow)
			defer late.Stop()
			select {
			case <-late.C:
			case <-ctx.Done():
				return nil, fault.Wrap(ctx.Err(), fault.Canceled, "it was reading")
			}
		}
		s.w.mu.Lock()
		defer s.w.mu.Unlock()
		if s.refuses != nil {
			return nil, s.refuses
		}
		return s.staged.Select(ctx, q)
	}
	s.w.mu.Lock()
	s.asked++
	mute, breaks := s.mute, s.breaks
	stale := s.staleLocked(q)
	s.w.mu.Unlock()
	if mute {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if stale {
		return nil, fault.Errorf(fault.Stale, "%s does not lead %v", s.id, q.Partitions)
	}
	if mine := *q; s.old {
		mine.Limit = 0
		q = &mine
	}
	in, err := s.Store.Select(ctx, q)
	if breaks != nil {
		in = &breaking{SeriesSet: in, err: breaks}
	}
	return in, err
}

func (s *storage) Exemplars(ctx context.Context, q *peer.Select, sets [][]peer.Matcher) ([]peer.SeriesExemplars, error) {
	s.w.mu.Lock()
	stale := s.staleLocked(q)
	s.w.mu.Unlock()
	if stale {
		return nil, fault.Errorf(fault.Stale, "%s does not lead %v", s.id, q.Partitions)
	}
	return s.Store.Exemplars(ctx, q, sets)
}

func (s *storage) LabelValues(ctx context.Context, q *peer.Select, name string, limit int) ([]string, bool, error) {
	if s.books == 0 {
		return s.Store.LabelValues(ctx, q, name, limit)
	}
	s.w.mu.Lock()
	stale := q.Copies != peer.StagedRows && s.staleLocked(q)
	s.w.mu.Unlock()
	if stale {
		return nil, false, fault.Errorf(fault.Stale, "%s does not lead %v", s.id, q.Partitions)
	}
	if err := budget.LoanOf(ctx).Take(s.books); err != nil {
		return nil, false, err
	}
	return s.Store.LabelValues(ctx, q, name, limit)
}

// staleLocked is a server's rule: it leads the partitions asked for, and its map has no other that should be asked.
func (s *storage) staleLocked(q *peer.Select) (stale bool) {
	m := s.w.newest
	if m != nil && q.MapNext < m.NextID {
		stale = slices.ContainsFunc(m.Overlapping(q.Lo, q.Hi), func(p *topology.Partition) bool { return p.ID >= q.MapNext })
	}
	for _, id := range q.Partitions {
		stale = stale || s.w.truth[id] != s.id
		if m != nil && q.MapSeq > 0 && q.MapSeq < m.Seq {
			at, there := m.ByID(id)
			stale = stale || !there || !at.Accepts()
		}
	}
	return stale
}

// breaking breaks off after one series.
type breaking struct {
	peer.SeriesSet
	given int
	err   error
}

func (b *breaking) Next() bool { b.given++; return b.given < 2 && b.SeriesSet.Next() }
func (b *breaking) Err() error { return b.err }

// rows reads everything: "0: 0 1 2, …" are times in seconds by series.
func (w *world) rows(ctx context.Context) (string, error) {
	set, err := w.source.Select(ctx, &peer.Select{Table: "t", Hi: 1e18})
	if err != nil {
		return "", err
	}
	var out []string
	for set.Next() {
		s := set.At().Labels.Get("i") + ":"
		for _, at := range set.At().Times {
			s += fmt.Sprint(" ", at/1e9)
		}
		out = append(out, s)
	}
	return strings.Join(out, ", "), errors.Join(set.Err(), set.Close())
}

const whole = "0: 0 1 2, 1: 0 1 2, 2: 0 1 2"

// reads wants an answer, and no series set left open after it.
func (w *world) reads(want string) {
	w.t.Helper()
	got, err := w.rows(w.t.Context())
	if err != nil || got != want {
		w.t.Errorf("read %q %v, want %q", got, err, want)
	}
	w.closed()
}

func (w *world) closed() {
	w.t.Helper()
	synctest.Wait()
	for id, s := range w.servers {
		n := s.Unclosed()
		if s.staged != nil {
			n += s.staged.Unclosed()
		}
		if n != 0 {
			w.t.Errorf("%d sets of %s are not closed", n, id)
		}
	}
}

func inWorld(t *testing.T, story func(w *world)) {
	synctest.Test(t, func(t *testing.T) { story(newWorld(t)) })
}

func TestSeriesOfAllServersAreOne(t *testing.T) {
	inWorld(t, func(w *world) { w.reads(whole) })
}

// TestSeriesThatAreReadAheadAreBooked, and released when the asker has them, or leaves: of many servers and many queries they were hundreds of MB in no account.
func TestSeriesThatAreReadAheadAreBooked(t *testing.T) {
	inWorld(t, func(w *world) {
		const long = 100_000
		for i, id := range w.All() {
			b := point.GetBatch(point.NewDict(0))
			series := querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m", "i", "long"))
			for row := range int64(long) {
				b.Append(series, int64(i)*1e9+row, 1)
			}
			if err := querytest.Inserter(w.servers[id].Store, "t", point.PartitionID(i+1))(w.t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		read := func(memory int64, all bool) (rows int, most int64, err error) {
			loan, err := budget.New("queries", memory).Borrow(w.t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			defer loan.Close()
			set, err := w.source.Select(budget.WithLoan(w.t.Context(), loan), &peer.Select{Table: "t", Hi: 1e18})
			if err != nil {
				t.Fatal(err)
			}
			for (all || rows == 0) && set.Next() {
				rows += len(set.At().Times)
				synctest.Wait()
				most = max(most, loan.Used())
			}
			err = errors.Join(set.Err(), set.Close())
			if used := loan.Used(); used != 0 {
				t.Errorf("%d bytes stay booked", used)
			}
			return rows, most, err
		}
		for _, all := range []bool{true, false} {
			if rows, most, err := read(64<<20, all); err != nil || most < 3*long*16 || all && rows != 3*(3+long) {
				t.Errorf("%d rows, %d bytes were booked, %v", rows, most, err)
			}
		}
		if rows, _, err := read(4<<20, true); !fault.Is(err, fault.TooLarge) && !fault.Is(err, fault.Throttled) {
			t.Errorf("%d rows in too little memory: %v", rows, err)
		}
		w.closed()
	})
}

// TestALookUpThatIsAskedAgainBooksItsLastAnswersAlone: each try's answers stayed booked until the request ended, and a look-up of many names was refused while
// a lease moved.
func TestALookUpThatIsAskedAgainBooksItsLastAnswersAlone(t *testing.T) {
	inWorld(t, func(w *world) {
		const answer = 1 << 20
		for _, s := range w.servers {
			s.books = answer
		}
		lookUp := func(times int) {
			t.Helper()
			loan, err := budget.New("queries", 64<<20).Borrow(w.t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			defer loan.Close()
			values, _, err := w.source.LabelValues(budget.WithLoan(w.t.Context(), loan), &peer.Select{Table: "t", Hi: 1e18}, "i", 0)
			if used := loan.Used(); err != nil || strings.Join(values, " ") != "0 1 2" || used != int64(times)*answer {
				t.Errorf("%v %v, and %d bytes are booked, want %d answers of %d", values, err, used, times, answer)
			}
		}
		lookUp(3)

		w.change(func() { w.leads[2] = "n3" }) // which has nothing of it
		go func() {
			time.Sleep(100 * time.Millisecond)
			w.change(func() { w.leads[2] = "n2" })
		}()
		lookUp(3)
	})
}

// TestAQueryFollowsALease: the gateway is notified late of a leader that moved; no server leads for a while; the old leader hangs.
func TestAQueryFollowsALease(t *testing.T) {
	inWorld(t, func(w *world) {
		// In this test n1 gets the memory of n2.
		w.servers["n1"].Store, w.servers["n2"].Store = w.servers["n2"].Store, w.servers["n1"].Store
		w.change(func() { w.truth[1], w.truth[2] = "n2", "n1" })
		go func() {
			time.Sleep(100 * time.Millisecond)
			w.change(func() { w.leads[1], w.leads[2] = "n2", "n1" })
		}()
		w.reads(whole)

		w.change(func() { w.leads[3] = "" })
		go func() {
			time.Sleep(time.Second)
			w.change(func() { w.leads[3] = "n3" })
		}()
		start := time.Now()
		w.reads(whole)
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v: it should have gone on as soon as there was a leader", took)
		}

		w.change(func() { w.truth[3], w.guesses = "", map[point.PartitionID]bool{3: true} }) // none leads: n3 is asked on a guess
		go func() {
			time.Sleep(time.Second)
			w.change(func() { w.truth[3], w.guesses = "n3", nil })
		}()
		start = time.Now()
		w.reads(whole)
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v: it should have gone on as soon as the server that was guessed led", took)
		}

		w.change(func() { w.servers["n3"].mute = true })
		w.servers["n2"].Store, w.servers["n3"].Store = w.servers["n3"].Store, w.servers["n2"].Store
		go func() {
			time.Sleep(3 * time.Second)
			w.change(func() {
				w.truth = map[point.PartitionID]topology.ServerID{1: "n3", 2: "n1", 3: "n2"}
				w.leads = map[point.PartitionID]topology.ServerID{1: "n3", 2: "n1", 3: "n2"}
				w.servers["n3"].mute = false
			})
		}()
		w.reads(whole)
	})
}

func TestWhatStaysStaleIsAnError(t *testing.T) {
	inWorld(t, func(w *world) {
		w.change(func() { w.truth[2] = "elsewhere" })
		start := time.Now()
		_, err := w.rows(w.t.Context())
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "partition 2") {
			t.Errorf("%v", err)
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("took %v", took)
		}
		if n := w.servers["n2"].asked; n < 2 || n > w.source.follow.Policy.TriesMax {
			t.Errorf("asked %d times", n)
		}
		w.closed()
		ctx, warned := query.WithWarnings(query.WithPartial(w.t.Context()))
		if got, err := w.rows(ctx); got != "0: 0 2, 1: 0 2, 2: 0 2" || err != nil || len(warned.Texts()) != 1 || !strings.Contains(warned.Texts()[0], "partition 2") {
			t.Errorf("in part: %q %v, warned of %q", got, err, warned.Texts())
		}
		w.closed()
		w.change(func() { w.leads[2] = "" }) // no leader at all
		if got, err := w.rows(ctx); got != "0: 0 2, 1: 0 2, 2: 0 2" || err != nil {
			t.Errorf("without a leader: %q %v", got, err)
		}
		w.closed()
	})
}

// TestAServerThatBreaksOffIsSaid: half of its series must not look like all of them.
func TestAServerThatBreaksOffIsSaid(t *testing.T) {
	inWorld(t, func(w *world) {
		w.servers["n2"].breaks = fault.Errorf(fault.Unavailable, "connection reset")
		if got, err := w.rows(w.t.Context()); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "n2") {
			t.Errorf("%q %v", got, err)
		}
		w.closed()
		ctx, warned := query.WithWarnings(query.WithPartial(w.t.Context()))
		if got, err := w.rows(ctx); got != "0: 0 1 2, 1: 0 2, 2: 0 2" || err != nil || len(warned.Texts()) != 1 {
			t.Errorf("in part: %q %v %q", got, err, warned.Texts())
		}
		w.closed()
	})
}

func TestRefusalsAndCancellationEndEverything(t *testing.T) {
	inWorld(t, func(w *world) {
		w.servers["n2"].breaks = fault.Errorf(fault.TooLarge, "too many samples")
		if _, err := w.rows(w.t.Context()); !fault.Is(err, fault.TooLarge) {
			t.Errorf("%v", err)
		}
		w.closed()
		w.servers["n2"].mute = true
		ctx, stop := context.WithTimeout(w.t.Context(), 10*time.Second)
		defer stop()
		if _, err := w.rows(ctx); !fault.Is(err, fault.Canceled) {
			t.Errorf("%v", err)
		}
		w.closed()
		// A set that is closed half way stops its readers.
		w.servers["n2"].mute, w.servers["n2"].breaks = false, nil
		set, err := w.source.Select(w.t.Context(), &peer.Select{Table: "t", Hi: 1e18})
		if err != nil || !set.Next() {
			t.Fatal(err)
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
		w.closed()
		if _, err := w.source.Select(w.t.Context(), &peer.Select{Table: "nobody's"}); !fault.Is(err, fault.NotFound) {
			t.Errorf("%v", err)
		}
	})
}

// TestRowsOfASplitPartitionsHalvesAreRead: the gateway does not have the map in which partition 1 is split, and its low half has
// accepted rows. Only the leader of partition 1 can report it.
func TestRowsOfASplitPartitionsHalvesAreRead(t *testing.T) {
	w := newWorld(t)
	low, high := topology.Child{ID: 4, Placements: []topology.Placement{{ID: 4, Server: "n2"}}}, topology.Child{ID: 5, Placements: []topology.Placement{{ID: 5, Server: "n2"}}}
	newest, err := w.m.Apply(topology.SplitBegin{Partition: 1, Split: topology.Split{At: topology.AtTime(5e8), Low: low, High: high}}, topology.SplitFinalize{Partition: 1, Low: 4})
	if err != nil {
		t.Fatal(err)
	}
	w.change(func() {
		w.newest = newest
		for _, known := range []map[point.PartitionID]topology.ServerID{w.leads, w.truth} {
			known[4], known[5] = "n2", "n2"
		}
	})
	w.insert("n2", 4, 1e8)
	for range 2 { // by the old map, and by the new one
		set, err := w.source.Select(t.Context(), &peer.Select{Table: "t", Hi: 1e18})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for set.Next() {
			n++
		}
		if err := errors.Join(set.Err(), set.Close()); err != nil || n != 4 {
			t.Errorf("%d series are read, there are 4; %v", n, err)
		}
	}
}

// TestADeletionThatFailsInAParentLeavesItsHalves: a value was overwritten in a half, and the parent, which has the older one, cannot delete. The half deleted beside it, and the
// deletion, which had no ack, showed the older value again.
func TestADeletionThatFailsInAParentLeavesItsHalves(t *testing.T) {
	inWorld(t, func(w *world) {
		low, high := topology.Child{ID: 4, Placements: []topology.Placement{{ID: 4, Server: "n2"}}}, topology.Child{ID: 5, Placements: []topology.Placement{{ID: 5, Server: "n2"}}}
		newest, err := w.m.Apply(topology.SplitBegin{Partition: 1, Split: topology.Split{At: topology.AtTime(5e8), Low: low, High: high}}, topology.SplitFinalize{Partition: 1, Low: 4})
		if err != nil {
			w.t.Fatal(err)
		}
		parent := w.leads[1]
		w.change(func() {
			w.m, w.newest = newest, newest
			for _, known := range []map[point.PartitionID]topology.ServerID{w.leads, w.truth} {
				known[4], known[5] = "n2", "n2"
			}
		})
		w.insert("n2", 4, 1e8)
		w.servers[parent].keeps = fault.Errorf(fault.Unavailable, "its disk is full")
		ctx, stop := context.WithTimeout(w.t.Context(), 5*time.Second)
		defer stop()
		if err := w.source.DeleteSeries(ctx, &peer.Select{Table: "t", Hi: 1e18, Matchers: []peer.Matcher{{Name: point.MetricName, Value: "m"}}}); err == nil {
			w.t.Error("it is acked")
		}
		w.reads(whole + ", new: 0")
	})
}

// insert puts a row, with an exemplar, of a new series.
func (w *world) insert(server topology.ServerID, p point.PartitionID, at int64) {
	b := point.GetBatch(point.NewDict(0))
	id := querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m", "i", "new"))
	b.Append(id, at, 1)
	b.Exemplars = append(b.Exemplars, point.ExemplarRow{ID: id, Time: at, Value: 1})
	if err := querytest.Inserter(w.servers[server].Store, "t", p)(w.t.Context(), b); err != nil {
		w.t.Fatal(err)
	}
}

// TestRowsOfPartitionsNotSeenYetAreRead: another gateway has just made partition 4, and n2 acked rows of it. n1, which is
// asked for other rows in that time, has the newer map, and this gateway does not yet; so it is for exemplars.
func TestRowsOfPartitionsNotSeenYetAreRead(t *testing.T) {
	for _, what := range []string{"select", "exemplars"} {
		inWorld(t, func(w *world) {
			newest := w.m.Cover([]point.Nanos{5e9}, func(point.PartitionID) []topology.Placement {
				return []topology.Placement{{ID: 4, Server: "n2"}}
			})
			w.insert("n2", 4, 5e9)
			w.change(func() { w.newest, w.leads[4], w.truth[4] = newest, "n2", "n2" })
			if what == "select" {
				w.reads(whole + ", new: 5")
				return
			}
			found, err := w.source.Exemplars(w.t.Context(), &peer.Select{Table: "t", Hi: 1e18}, [][]peer.Matcher{nil})
			if err != nil || len(found) != 1 || found[0].Labels.Get("i") != "new" {
				w.t.Errorf("exemplars %v %v", found, err)
			}
		})
	}
}

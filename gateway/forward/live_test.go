package forward_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// intern numbers n series of a table from one on, and counts those that are accepted.
func (c *cluster) intern(table string, from, n int) (taken int) {
	c.t.Helper()
	t, err := c.forward.Table(c.t.Context(), table)
	c.must(err)
	d := t.Dict()
	for i := from; i < from+n; i++ {
		l := point.MakeLabels("__name__", "m", "i", fmt.Sprint(i))
		_, err := d.Intern(d.Hash([]byte(l)), l)
		switch {
		case err == nil:
			taken++
		case !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), table):
			c.t.Fatalf("%v (%v), want Invalid that names the table", err, fault.KindOf(err))
		}
	}
	return taken
}

// TestOneTablesFloodOfSeriesLeavesRoomForOthers: the bound of series was one for each table, so that five tables used five
// times the memory there is.
func TestOneTablesFloodOfSeriesLeavesRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{GenerationSeriesMax: 10_000, GenerationAgeMin: 10 * time.Minute, GenerationAge: 2 * time.Hour}, "n1")
		all := 0
		for i := range 5 {
			all += c.intern(fmt.Sprint("flood", i), 0, 20_000)
		}
		if all < 7500 || all > 10_000 {
			t.Errorf("five tables got %d series of 10,000", all)
		}
		if got := c.intern("small", 0, 20); got != 20 {
			t.Errorf("a small table got %d of its 20 series", got)
		}
		if got := c.intern("flood0", 0, 7000); got != 7000 {
			t.Errorf("%d of 7000 known series go on", got)
		}
	})
}

// TestATableAboveItsShareGivesWayInTime: a table does not keep for ever the series it had while it was alone.
func TestATableAboveItsShareGivesWayInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{GenerationSeriesMax: 1000, GenerationAgeMin: 10 * time.Minute, GenerationAge: 2 * time.Hour}, "n1")
		first := c.intern("greedy", 0, 2000)
		time.Sleep(time.Second)
		second := c.intern("second", 0, 400)
		if second >= 400 || second < 100 {
			t.Errorf("the second got %d of 400 beside %d", second, first)
		}
		for range 11 { // it goes on trying
			time.Sleep(time.Minute)
			c.intern("second", 0, 400)
		}
		again := c.intern("greedy", 0, 2000)
		if again < 450 || again > 650 {
			t.Errorf("the greedy one still has %d of %d", again, first)
		}
		if got := c.intern("second", 0, 400); got < 250 {
			t.Errorf("the second has %d of 400", got)
		}
	})
}

// TestASeriesThatIsKnownStaysAcrossDictionaries: a new dictionary numbers the active series anew, while other tables used
// the free ones.
func TestASeriesThatIsKnownStaysAcrossDictionaries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{GenerationSeriesMax: 1000, GenerationAgeMin: 10 * time.Minute, GenerationAge: 2 * time.Hour}, "n1")
		known := c.intern("a", 0, 400)
		others := c.intern("b", 0, 2000)
		time.Sleep(2*time.Hour + time.Minute)
		if got := c.intern("a", 0, 400); got != known || known != 400 {
			t.Errorf("%d of %d series are known beside %d of others", got, known, others)
		}
		// Of 400 only 100 go on: the others make room when the dictionary has been in use for a while.
		time.Sleep(2*time.Hour + time.Minute)
		c.intern("a", 0, 100)
		time.Sleep(11 * time.Minute)
		c.intern("a", 0, 100)
		if more := c.intern("b", 0, 3000); more < others+200 {
			t.Errorf("the other table has %d series, and had %d", more, others)
		}
	})
}

// TestLongLabelsTakeMoreOfTheShare: a series with kilobytes of labels costs as much as many series.
func TestLongLabelsTakeMoreOfTheShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{GenerationSeriesMax: 10_000, GenerationAgeMin: 10 * time.Minute, GenerationAge: 2 * time.Hour}, "n1")
		table, err := c.forward.Table(t.Context(), "long")
		c.must(err)
		d, taken := table.Dict(), 0
		for i := range 10_000 {
			l := point.MakeLabels("__name__", "m", "i", fmt.Sprint(i), "text", strings.Repeat("x", 8000))
			if _, err := d.Intern(d.Hash([]byte(l)), l); err != nil {
				break
			}
			taken++
		}
		if taken > 1500 || taken < 100 {
			t.Errorf("%d series of 8 kB in the room of 10,000", taken)
		}
		if got := c.intern("small", 0, 20); got != 20 {
			t.Errorf("a small table got %d of its 20 series", got)
		}
	})
}

// TestSeriesThatBeganWhileTheirDictionaryWasFollowedMakeRoom: a request that is being decoded while a new dictionary begins adds series to the old
// one. They stayed counted for as long as the process ran, some at every turn, until series of all tables were refused.
func TestSeriesThatBeganWhileTheirDictionaryWasFollowedMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{GenerationSeriesMax: 1000, GenerationAgeMin: 10 * time.Minute, GenerationAge: 2 * time.Hour}, "n1")
		table, err := c.forward.Table(t.Context(), "t")
		c.must(err)
		for turn := range 40 {
			old := table.Dict()
			time.Sleep(2*time.Hour + time.Minute)
			if c.intern("t", 0, 10); table.Dict() == old {
				t.Fatal("no new dictionary began")
			}
			for i := range 20 {
				l := point.MakeLabels("__name__", "late", "turn", fmt.Sprint(turn), "i", fmt.Sprint(i))
				if _, err := old.Intern(old.Hash([]byte(l)), l); err != nil {
					t.Fatalf("turn %d: %v", turn, err)
				}
			}
		}
		time.Sleep(11 * time.Minute) // the series that did not come again are released
		if c.intern("t", 0, 10); c.forward.Series() != 10 {
			t.Errorf("10 series are active, and %d are counted", c.forward.Series())
		}
	})
}

// TestDroppedSamplesAreCountedOnce: requests that began at the same moment counted the samples of dropped series twice.
func TestDroppedSamplesAreCountedOnce(t *testing.T) {
	c := newClusterWith(t, func(d *forward.Deps) { d.Relabel = func(string) point.Relabeller { return dropAll{} } }, forward.Settings{}, "n1")
	table, err := c.forward.Table(t.Context(), "t")
	c.must(err)
	const senders, requests = 4, 20_000
	l := point.MakeLabels("__name__", "m")
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			for range requests {
				b := point.GetBatch(table.Dict())
				id, err := b.Dict.Intern(b.Dict.Hash([]byte(l)), l)
				if err != nil {
					t.Error(err)
				}
				b.Append(id, 1, 1)
				b.RemoveDropped()
				b.Put()
			}
		})
	}
	all.Wait()
	table.Dict()
	if got := c.counted("spillway_forward_relabel_dropped_samples_total", ""); got != senders*requests {
		t.Errorf("%v samples are counted as dropped, and %d were", got, senders*requests)
	}
}

// dropAll drops every series.
type dropAll struct{}

func (dropAll) Relabel(point.Labels) (point.Labels, bool, error) { return "", false, nil }

// TestSeriesOfATableWithoutWritersMakeRoom: a dictionary ended when its table was written to. That of a table whose senders had all gone kept its
// series, here and at storage servers, until a restart, and other tables' were refused.
func TestSeriesOfATableWithoutWritersMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{GenerationSeriesMax: 1000, GenerationAgeMin: 10 * time.Minute, GenerationAge: 2 * time.Hour}, "n1")
		if got := c.intern("gone", 0, 700); got != 700 {
			t.Fatalf("%d of 700 series are taken", got)
		}
		for range 15 {
			time.Sleep(10 * time.Minute)
			c.intern("writes", 0, 10)
		}
		if got := c.forward.Series(); got != 10 {
			t.Errorf("%d series are counted, and 10 are written to", got)
		}
		if got := c.intern("writes", 0, 700); got != 700 {
			t.Errorf("%d of 700 series are taken", got)
		}
	})
}

// TestADroppedTableIsForgotten: each table that ever was used memory, and its series a part of those that there is memory for, until a restart.
func TestADroppedTableIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{GenerationSeriesMax: 1000, GenerationAgeMin: 10 * time.Minute, GenerationAge: 2 * time.Hour}, "n1")
		c.intern("gone", 0, 700)
		before, err := c.forward.Table(t.Context(), "gone")
		c.must(err)
		late := point.GetBatch(before.Dict())
		defer late.Put()
		c.must(c.tables.DropTable(t.Context(), "gone"))
		for range 3 {
			time.Sleep(10 * time.Minute)
			for range 3 { // a request looks at one table
				c.intern("writes", 0, 10)
			}
		}
		if got := c.forward.Series(); got != 10 || c.forward.Holds("gone") || !c.forward.Holds("writes") {
			t.Errorf("%d series are counted, and 10 are of a table that is there; the dropped one is held: %t", got, c.forward.Holds("gone"))
		}
		unknown := point.MakeLabels(point.MetricName, "late")
		if _, err := late.Dict.Intern(late.Dict.Hash([]byte(unknown)), unknown); !fault.Is(err, fault.Unavailable) {
			t.Errorf("a new series of a request that began before: %v", err)
		}
		if err := before.Write(t.Context(), late, point.All); !fault.Is(err, fault.Unavailable) {
			t.Errorf("a write that began before: %v", err)
		}
		if n := c.intern("gone", 0, 20); n != 20 || c.forward.Series() != 30 {
			t.Errorf("made anew: %d of 20 series are taken, %d are counted", n, c.forward.Series())
		}
	})
}

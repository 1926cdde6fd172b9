package partition

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/segment"
)

const mib = 1 << 20

func settings() Settings {
	s := Settings{HeadBytesMax: 64 * mib, FlushAge: time.Hour, FlushIdle: 10 * time.Minute, MinorsMax: 12}
	s.SetDefaults()
	return s
}

func TestFlushDue(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	set := settings()
	f := func(what string, h HeadShape, compacting bool, want Reason) {
		t.Helper()
		if h.LastWrite.IsZero() {
			h.LastWrite = ago(time.Second)
		}
		if h.Born.IsZero() {
			h.Born = ago(time.Minute)
		}
		if got := set.FlushDue(now, h, compacting); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	f("an empty head is not flushed, however old", HeadShape{Born: ago(9 * time.Hour), LastWrite: ago(9 * time.Hour)}, false, NotDue)
	f("a head that fills up is left alone", HeadShape{Frames: 9, Bytes: 64*mib - 1}, false, NotDue)
	f("a full head is flushed", HeadShape{Frames: 9, Bytes: 64 * mib}, false, BySize)
	f("a head of many series is full at 300 bytes each", HeadShape{Frames: 9, Bytes: 299 * mib, Series: mib}, false, NotDue)
	f("and then is flushed", HeadShape{Frames: 9, Bytes: 300 * mib, Series: mib}, false, BySize)
	f("while a compaction runs it gets half as large again", HeadShape{Frames: 9, Bytes: 96*mib - 1}, true, NotDue)
	f("and no larger", HeadShape{Frames: 9, Bytes: 96 * mib}, true, BySize)
	f("a head with followers is flushed before they have too many rows in their logs alone", HeadShape{Frames: 9, Rows: copiedRowsMax, Copied: true}, false, ByCopies)
	f("not quite", HeadShape{Frames: 9, Rows: copiedRowsMax - 1, Copied: true}, false, NotDue)
	f("a head without followers takes more rows", HeadShape{Frames: 9, Rows: copiedRowsMax}, false, NotDue)
	f("a row lies for an hour at most", HeadShape{Frames: 1, Born: ago(time.Hour)}, false, ByAge)
	f("not quite", HeadShape{Frames: 1, Born: ago(time.Hour - 1)}, false, NotDue)
	f("while a compaction runs it may lie for four hours", HeadShape{Frames: 1, Born: ago(4*time.Hour - 1)}, true, NotDue)
	f("and no longer", HeadShape{Frames: 1, Born: ago(4 * time.Hour)}, true, ByAge)
	f("a head nobody writes to waits ten minutes", HeadShape{Frames: 1, Born: ago(11 * time.Minute), LastWrite: ago(10 * time.Minute)}, false, ByIdle)
	f("not quite", HeadShape{Frames: 1, Born: ago(11 * time.Minute), LastWrite: ago(10*time.Minute - 1)}, false, NotDue)
	f("a narrow partition's waits twenty seconds once its time has passed", HeadShape{Frames: 1, Passed: true, Born: ago(time.Minute), LastWrite: ago(20 * time.Second)}, false, ByIdle)
	f("not quite", HeadShape{Frames: 1, Passed: true, Born: ago(time.Minute), LastWrite: ago(20*time.Second - 1)}, false, NotDue)
	f("a head whose flush failed is tried again, though nothing came since", HeadShape{Stuck: true, RetryAt: now}, false, ByRetry)
	f("but not at once", HeadShape{Stuck: true, RetryAt: now.Add(1)}, false, NotDue)
	f("nor does a full one hurry it", HeadShape{Frames: 9, Bytes: 99 * mib, Stuck: true, RetryAt: now.Add(1)}, false, NotDue)
}

func TestCompactDue(t *testing.T) {
	set := settings()
	major := func(size int64) segment.Info { return segment.Info{Meta: segment.Meta{Major: true}, Size: size} }
	minors := func(n int, size int64) (all []segment.Info) {
		for range n {
			all = append(all, segment.Info{Size: size})
		}
		return all
	}
	chain := func(m segment.Info, rest []segment.Info) Chain {
		return Chain{Segments: append([]segment.Info{m}, rest...)}
	}
	closed := func(c Chain, idle time.Duration) Chain { c.Closed, c.Idle = true, idle; return c }
	deleted := func(c Chain, n int) Chain { c.Deletions = n; return c }
	from := func(what string, c Chain, want Reason, first int) {
		t.Helper()
		if got, i := set.CompactDue(&c); got != want || i != first {
			t.Errorf("%s: %q from segment %d on, want %q from %d", what, got, i, want, first)
		}
	}
	f := func(what string, c Chain, want Reason) {
		t.Helper()
		from(what, c, want, 0)
	}
	f("nothing was ever flushed", Chain{}, NotDue)
	f("a major alone is as good as it gets", chain(major(100), nil), NotDue)
	f("twelve minors are too many to read", chain(major(1), minors(12, 4*mib)), ByCount)
	from("where the major is heavy it stays", chain(major(1<<40), minors(12, 1)), ByCount, 1)
	from("and so do the heavier ones above it", chain(major(1<<40), append(minors(4, 100), minors(8, 1)...)), ByCount, 5)
	from("until they are many", chain(major(1<<40), append(minors(10, 100), minors(2, 90)...)), ByCount, 1)
	f("eleven are not", chain(major(1), minors(11, 4*mib)), NotDue)
	f("in a small partition eight are", chain(major(1), minors(8, 1)), ByCount)
	from("where the major is heavy among them it stays", chain(major(1<<20), minors(8, 1)), ByCount, 1)
	f("seven are not, however heavy", chain(major(1), minors(7, 4*mib)), NotDue)
	f("it is small below 32 MiB", chain(major(24*mib), minors(8, mib)), NotDue)
	from("in all", chain(major(24*mib-1), minors(8, mib)), ByCount, 1)
	few := set
	few.MinorsMax = 3
	if got, _ := few.CompactDue(&Chain{Segments: append([]segment.Info{major(1)}, minors(3, 1)...)}); got != ByCount {
		t.Errorf("three minors where three are allowed: %q", got)
	}

	f("a partition that is written to no more is folded for good", closed(chain(major(100), minors(1, 10)), 10*time.Minute), ByClosing)
	f("when it has rested", closed(chain(major(100), minors(1, 10)), 10*time.Minute-1), NotDue)
	f("a few late rows do not rewrite it", closed(chain(major(161), minors(1, 10)), 23*time.Hour), NotDue)
	f("nor do twelve minors stay apart then", closed(chain(major(1<<40), minors(12, 1<<39)), 10*time.Minute), ByClosing)
	f("before a day without any has passed", closed(chain(major(161), minors(1, 10)), 24*time.Hour), ByClosing)
	f("then there is nothing left to do", closed(chain(major(100), nil), 48*time.Hour), NotDue)

	old := func(c Chain, ranks int64) Chain { c.OldRanks = ranks; return c }
	f("ranks that nobody needs are left out, once", old(closed(chain(major(100), nil), 24*time.Hour), 5), ByRanks)
	f("if they are worth it", old(closed(chain(major(101), nil), 24*time.Hour), 5), NotDue)
	f("and no rows come", old(closed(chain(major(100), nil), 24*time.Hour-1), 5), NotDue)
	f("to a partition that is closed", old(chain(major(100), nil), 5), NotDue)

	f("deletions are applied by readers at first", deleted(chain(major(100), nil), 31), NotDue)
	f("when there are many, the rows are taken out", deleted(chain(major(100), nil), 32), ByDeletions)
	asked := func(c Chain) Chain { c.Clean = true; return c }
	f("or somebody asked", asked(deleted(chain(major(100), nil), 1)), ByRequest)
	f("who is not asked about what has none", asked(chain(major(100), minors(3, 1))), NotDue)
	f("and when nothing is written any more", deleted(closed(chain(major(100), nil), 24*time.Hour), 1), ByDeletions)
}

func TestRetriesSlowDown(t *testing.T) {
	var b backoff
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	f := func(err error, want time.Duration) {
		t.Helper()
		b.note(now, err)
		if got := max(b.until.Sub(now), 0); got != want {
			t.Errorf("after %v the next try is in %v, want %v", err, got, want)
		}
	}
	disk := errors.New("no space left on device")
	f(disk, time.Second)
	f(disk, 2*time.Second)
	f(disk, 4*time.Second)
	f(context.Canceled, 4*time.Second)
	f(fault.Errorf(fault.Canceled, "the partition is being closed"), 4*time.Second)
	for range 100 {
		b.note(now, disk)
	}
	f(disk, time.Minute)
	f(nil, 0)
	f(disk, time.Second)
}

package brick

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestThePaceOfADiskIsThatOfItsTime: a slow second counts as much as a fast one, however many fsyncs that had room for.
func TestThePaceOfADiskIsThatOfItsTime(t *testing.T) {
	const ms = time.Millisecond
	var p pace
	now := time.Hour
	// each lets fsyncs of a duration follow each other for a time.
	each := func(total, d, gap time.Duration) {
		for end := now + total; now+d+gap <= end; now += gap {
			start := now
			p.began(start)
			now += d
			p.ended(start, now)
		}
	}
	want := func(what string, want time.Duration) {
		t.Helper()
		if got := p.typical(now); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	want("nothing was fsynced", 0)
	each(4*time.Second, 10*ms, 90*ms)
	want("for a moment", 0)
	each(16*time.Second, 10*ms, 90*ms)
	want("fast", 10*ms)
	each(4*time.Second, 500*ms, 0)
	want("slow for 4 s, eight fsyncs after 160", 10*ms)
	each(3*time.Second, 500*ms, 0)
	want("slow for 7 s", 500*ms)
	each(20*time.Second, 500*ms, 0)
	each(7*time.Second, 10*ms, 90*ms)
	want("fast for 7 s", 10*ms)

	each(20*time.Second, 10*ms, 90*ms)
	start := now
	p.began(start)
	now += paceHung - ms
	want("one fsync has not ended for nearly 5 s", 10*ms)
	now += 2*time.Second + ms
	want("one fsync has not ended for 7 s", 7*time.Second)
	p.ended(start, now)
	want("it has ended", 7*time.Second)
	each(7*time.Second, 10*ms, 90*ms)
	want("for 7 s all end at once again", 10*ms)

	each(20*time.Second, 3*time.Second, 0)
	want("each takes seconds", 3*time.Second)
	each(60*time.Second, 400*ms, 4600*ms)
	want("one in 5 s: there are too few", 0)
	each(60*time.Second, 400*ms, 2100*ms)
	want("one in 2.5 s", 400*ms)
	now += 2 * time.Minute
	want("none for minutes", 0)
}

// TestAServerAtRestSaysHowLongItsFsyncsTake: the disks of servers to which a row comes now and then were not known, and one that hung could not be compared with them: it led on.
func TestAServerAtRestSaysHowLongItsFsyncsTake(t *testing.T) {
	const ms = time.Millisecond
	var p pace
	now := time.Hour
	fsync := func(d, gap time.Duration) {
		p.began(now)
		p.ended(now, now+d)
		now += d + gap
	}
	for i := range paceMin {
		if !p.probe() || p.typical(now) != 0 {
			t.Errorf("after %d seconds: probed %v, typical %v; want a probe, and 0", i, p.probe(), p.typical(now))
		}
		fsync(5*ms, 20*time.Second)
	}
	now += 24 * time.Hour
	if p.probe() || p.typical(now) != 5*ms {
		t.Errorf("well, and long at rest: probed %v, typical %v; want no probe, and 5ms", p.probe(), p.typical(now))
	}
	fsync(2*time.Second, 20*time.Second)
	if !p.probe() || p.typical(now) != 5*ms {
		t.Errorf("one slow fsync: probed %v, typical %v; want a probe, and 5ms", p.probe(), p.typical(now))
	}
	for range 4 { // the probes
		fsync(2*time.Second, time.Second)
	}
	if !p.probe() || p.typical(now) != 2*time.Second {
		t.Errorf("all probes are slow: probed %v, typical %v; want a probe, and 2s", p.probe(), p.typical(now))
	}
	for range paceMin {
		if !p.probe() {
			t.Error("it is not probed until it is quick")
		}
		fsync(5*ms, time.Second)
	}
	if p.probe() || p.typical(now) != 5*ms {
		t.Errorf("the probes are quick: probed %v, typical %v; want no probe, and 5ms", p.probe(), p.typical(now))
	}
}

// TestADiskThatHangsIsThePace, whether anything was fsynced before or not.
func TestADiskThatHangsIsThePace(t *testing.T) {
	var p pace
	p.began(time.Hour)
	if got := p.typical(time.Hour + paceHung); got != paceHung || p.longest(time.Hour+paceHung) != paceHung {
		t.Errorf("the first fsync has not ended for 5 s: %v", got)
	}
	p.ended(time.Hour, time.Hour+paceHung)
	if got := p.longest(time.Hour + paceHung); got != 0 {
		t.Errorf("it has ended, and %v runs", got)
	}
}

// TestAStallThatIsOverDoesNotCountOn: a server is judged by what it says for some seconds (metadata/lease), and the disk was well again before.
func TestAStallThatIsOverDoesNotCountOn(t *testing.T) {
	for _, stall := range []time.Duration{4, 5, 6, 8} {
		var p pace
		now, slow := time.Hour, 0
		run := func(seconds time.Duration) {
			for range seconds {
				for range 10 {
					p.began(now)
					p.ended(now, now+5*time.Millisecond)
					now += 100 * time.Millisecond
				}
				if p.typical(now) > 250*time.Millisecond {
					slow++
				}
			}
		}
		run(20)
		p.began(now)
		start := now
		now += stall * time.Second
		p.ended(start, now)
		run(30)
		if slow > 2 {
			t.Errorf("after a stall of %d s fsyncs are slow for %d s, want 2 at most", stall, slow)
		}
	}
}

// TestAServerLeadsOnThroughAStallOfSixSeconds: one that says for four seconds that its fsyncs are slow hands over what it leads (metadata/lease, slowFor). It is asked once a second, at
// any moment, also while the fsync has not ended.
func TestAServerLeadsOnThroughAStallOfSixSeconds(t *testing.T) {
	const beat, slowFor = time.Second, 4 * time.Second
	for stall := 3 * time.Second; stall <= 6500*time.Millisecond; stall += 500 * time.Millisecond {
		for first := time.Duration(0); first < beat; first += beat / 10 {
			var p pace
			now, next, since := time.Hour, time.Hour+first, time.Duration(0)
			fsync := func(d time.Duration) {
				start, end := now, now+d
				p.began(start)
				for ; next <= end; next += beat {
					switch {
					case p.typical(next) < 250*time.Millisecond:
						since = 0
					case since == 0:
						since = next
					case next-since >= slowFor:
						t.Fatalf("a stall of %v: slow for %v", stall, next-since)
					}
				}
				p.ended(start, end)
				now = end
			}
			for range 400 {
				fsync(50 * time.Millisecond)
			}
			fsync(stall)
			for range 400 {
				fsync(50 * time.Millisecond)
			}
		}
	}
}

// TestTwoFsyncsAtOnceBothCount: a file of the log ends while the next one is written.
func TestTwoFsyncsAtOnceBothCount(t *testing.T) {
	var p pace
	now := time.Hour
	for range 10 {
		p.began(now)
		p.began(now + 100*time.Millisecond)
		p.ended(now, now+300*time.Millisecond)
		p.ended(now+100*time.Millisecond, now+200*time.Millisecond)
		now += time.Second
	}
	if len(p.running) > 0 || p.typical(now) != 200*time.Millisecond {
		t.Errorf("%d run on, %v is typical; want none and 200ms", len(p.running), p.typical(now))
	}
}

// crawlingFile is a file whose fsyncs do what a test says.
type crawlingFile struct {
	vfs.File
	sync func()
}

func (f crawlingFile) Sync() error {
	f.sync()
	return nil
}

// TestFsyncsOfTheLogAreMeasured, those of its files and no others.
func TestFsyncsOfTheLogAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := crawlingFile{sync: func() { time.Sleep(1200 * time.Millisecond) }}
		b := &Brick{m: newMetrics()}
		unsynced := &sink{File: slow, m: b.m, noSync: true}
		for range 10 {
			if err := unsynced.Sync(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if got := b.Fsync(); got != 0 {
			t.Errorf("without fsyncs one lasts %v", got)
		}
		synced := &sink{File: slow, m: b.m}
		for range 10 {
			if err := synced.Sync(); err != nil {
				t.Fatal(err)
			}
		}
		if got := b.Fsync(); got != 1200*time.Millisecond {
			t.Errorf("an fsync lasts %v, want 1.2s", got)
		}
		running := make(chan error)
		go func() { running <- synced.Sync() }()
		time.Sleep(time.Second)
		if begun, took := b.Fsyncs(); begun != 11 || took != 13*time.Second {
			t.Errorf("%d fsyncs took %v, want 10 and the one that has been running for a second, 13s", begun, took)
		}
		if err := <-running; err != nil {
			t.Fatal(err)
		}
		if begun, took := b.Fsyncs(); begun != 11 || took != 13200*time.Millisecond {
			t.Errorf("%d fsyncs took %v, want 11 and 13.2s", begun, took)
		}
	})
}

// TestADiskThatHangsIsReported: it gives no error, so that the log and the metric of fsyncs that have ended said nothing.
func TestADiskThatHangsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		release := make(chan struct{})
		b := &Brick{m: newMetrics(), log: slog.New(slog.NewTextHandler(&out, nil))}
		b.watchFsyncs()
		hung := &sink{File: crawlingFile{sync: func() { <-release }}, m: b.m}
		ended := make(chan error)
		sync := func() {
			go func() { ended <- hung.Sync() }()
			synctest.Wait()
		}
		end := func() {
			release <- struct{}{}
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
		}
		said := func(want int) {
			t.Helper()
			synctest.Wait()
			if n := strings.Count(out.String(), "an fsync of the log has not ended"); n != want {
				t.Errorf("reported %d times, want %d:\n%s", n, want, out.String())
			}
		}
		sync()
		time.Sleep(FsyncHung - time.Second)
		sync() // while the first one runs
		end()
		time.Sleep(2 * time.Second)
		said(0)
		if d := b.FsyncRunning(); d != 2*time.Second { // the second one
			t.Errorf("an fsync has been running for %v", d)
		}
		end()
		if d := b.FsyncRunning(); d != 0 || out.Len() > 0 {
			t.Errorf("all have ended, and one has been running for %v:\n%s", d, out.String())
		}

		sync()
		time.Sleep(time.Hour)
		said(1)
		if d := b.FsyncRunning(); d != time.Hour {
			t.Errorf("the metric says %v", d)
		}
		end()
		if !strings.Contains(out.String(), "has ended") || !strings.Contains(out.String(), "ran=1h0m0s") || b.FsyncRunning() != 0 {
			t.Errorf("it has ended:\n%s", out.String())
		}
		b.m.alarm.Stop()
	})
}

package brick

import "time"

// FsyncRunning is how long the oldest fsync of the common log that has not ended has been running; 0: none runs.
func (b *Brick) FsyncRunning() time.Duration {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	return b.m.mu.pace.longest(time.Since(b.m.opened))
}

// probes reports whether marks ask how long an fsync lasts. Where it is not compared with others, as in a process that is alone, a disk at rest is left so however slow it is.
func (b *Brick) probes() bool {
	if ro, _ := b.ReadOnly(); ro { // a mark each second would fill what room the log has left
		return false
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	asked := b.m.mu.asked > 0 && time.Since(b.m.opened)-b.m.mu.asked < probesFor
	return asked && !b.set.NoSync && b.m.mu.pace.probe()
}

// probesFor is how long after Fsync the disk is probed. A storage server calls it each second.
const probesFor = 10 * time.Second

// watchFsyncs has a timer report an fsync that does not end: the system gives no error for that, and the goroutines of the brick may hang as well.
func (b *Brick) watchFsyncs() {
	b.m.recovered = func(ran time.Duration) {
		b.log.Warn("the disk does not hang any more: the fsync of the log has ended", "dir", b.set.LogDir, "ran", ran.Round(time.Second).String())
	}
	b.m.alarm = time.AfterFunc(FsyncHung, b.reportHung)
	b.m.alarm.Stop()
}

func (b *Brick) reportHung() {
	m := b.m
	m.mu.Lock()
	d := m.mu.pace.longest(time.Since(m.opened))
	if d > 0 && d < FsyncHung { // the one for which the timer was set has ended
		m.alarm.Reset(FsyncHung - d)
	}
	if d >= FsyncHung {
		m.mu.hung = d
	}
	m.mu.Unlock()
	if d >= FsyncHung {
		b.log.Error("the disk hangs: an fsync of the log has not ended; no row is acked here until it does, look at the device", "dir", b.set.LogDir, "running", d.Round(time.Second).String())
	}
}

// FsyncHung is from when on an fsync that has not ended is reported. Disks that are only busy end them sooner.
const FsyncHung = 10 * time.Second

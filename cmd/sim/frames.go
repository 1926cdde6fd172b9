package main

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// frame is an insert of one row in the log of a partition with copies. One frame is one value: all placements that have it share it.
type frame struct {
	serial, prev point.Serial
	row          row
}

// frameBytes is the size of every frame, for windows and backlogs.
const frameBytes = 100

// record is a frame as it lies in a log.
type record struct {
	*frame
	at   uint64 // among the disk's writes
	torn bool   // a crash came in its midst
}

// journal is the frames of a placement that has copies elsewhere: those in segments, and the log behind them. Frame n is number n of the
// partition; each follows the one before.
//
//	all        1 2 3 4 5 6 7 8 9
//	segments   ├─major─┤├minor┤
//	records                    │8 9     a flush, or a segment that was adopted, releases the log
type journal struct {
	all      []*frame
	records  []record
	segments []*segmentFile
	upto     point.Serial // of the segments
	solid    point.Serial // of those that no power cut removes
}

func (j *journal) end() point.Serial {
	if n := len(j.all); n > 0 {
		return j.all[n-1].serial
	}
	return point.Serial{}
}

// ends are, per epoch, the last frames.
func (j *journal) ends() (ends []point.EpochEnd) { return endsOf(j.all) }

func endsOf(frames []*frame) (ends []point.EpochEnd) {
	for _, f := range frames {
		if n := len(ends); n > 0 && ends[n-1].Epoch == f.serial.Epoch {
			ends[n-1].Seq = f.serial.Seq
		} else {
			ends = append(ends, point.EpochEnd(f.serial))
		}
	}
	return ends
}

// find gives the frame of a serial; nil: it is not here.
func (j *journal) find(s point.Serial) *frame {
	if s.Seq == 0 || s.Seq > uint64(len(j.all)) || j.all[s.Seq-1].serial != s {
		return nil
	}
	return j.all[s.Seq-1]
}

// has reports whether a frame is here.
func (j *journal) has(f *frame) bool { return j.find(f.serial) == f }

// after gives the frames of the log behind a serial. found: the log reaches back to it.
func (j *journal) after(s point.Serial) (frames []record, found bool) {
	switch {
	case s == j.end():
		return nil, true
	case len(j.records) == 0 || s.Less(j.upto):
		return nil, false
	case s == j.records[0].prev:
		return j.records, true
	case j.find(s) == nil:
		return nil, false
	}
	return j.records[s.Seq-j.records[0].serial.Seq+1:], true
}

// appendFrame logs and applies a frame behind the last one.
func (d *disk) appendFrame(r *replica, f *frame) {
	j := r.log
	at := d.synced + uint64(len(d.log))
	old, had := r.rows[f.row.key]
	high := r.high
	j.records, j.all = append(j.records, record{frame: f, at: at}), append(j.all, f)
	r.apply(f, at)
	undo := func() {
		j.records, j.all = j.records[:len(j.records)-1], j.all[:len(j.all)-1]
		if r.high = high; had {
			r.rows[f.row.key] = old
		} else {
			delete(r.rows, f.row.key)
		}
	}
	d.log = append(d.log, logged{undo: undo, tear: func() { j.records[len(j.records)-1].torn = true }})
}

// apply has readers see a frame's row, unless one of a higher rank is there.
func (r *replica) apply(f *frame, at uint64) {
	if old, had := r.rows[f.row.key]; had && old.rank > f.row.rank {
		return
	}
	c := cell{row: f.row, epoch: f.serial.Epoch, at: at, serial: f.serial}
	c.sum = c.sumNow()
	r.rows[f.row.key], r.high = c, max(r.high, f.row.rank)
}

// cutFrames removes the frames behind a serial from the log, and builds the rows again from those that stay. It returns how many went.
func (d *disk) cutFrames(r *replica, after point.Serial) int {
	j := r.log
	n := len(j.records)
	for n > 0 && after.Less(j.records[n-1].serial) {
		n--
	}
	was, rows, high, surplus := *j, r.rows, r.high, r.surplus
	gone := len(j.records) - n
	r.surplus = slices.Clone(surplus)
	for _, rec := range j.records[n:] {
		r.surplus = append(r.surplus, rec.row)
	}
	j.records, j.all = slices.Clone(j.records[:n]), slices.Clone(j.all[:len(j.all)-gone])
	r.rebuild()
	d.wrote(func() {
		j.records, j.all = was.records, was.all
		r.rows, r.high, r.surplus = rows, high, surplus
	})
	return gone
}

// rebuild makes the rows again from the frames.
func (r *replica) rebuild() {
	r.rows, r.high = map[keyID]cell{}, 0
	for _, f := range r.log.all {
		r.apply(f, 0)
	}
}

// cutTorn removes a torn record from the end of the log, at a start.
func (r *replica) cutTorn(w *world) {
	j := r.log
	j.solid = j.upto // the start writes all that it finds again
	if n := len(j.records); n > 0 && j.records[n-1].torn {
		w.mark(tornFrame)
		if w.opt.broken == tornTaken {
			half := j.records[n-1].halved()
			j.records[n-1], j.all[len(j.all)-1] = record{frame: half, at: j.records[n-1].at}, half
		} else {
			j.records, j.all = j.records[:n-1], j.all[:len(j.all)-1]
		}
		r.rebuild()
	}
}

// halved is what a torn record looks like to a reader that does not compare sums.
func (f *frame) halved() *frame {
	g := *f
	g.row.value ^= 1 << 40
	return &g
}

// durable gives the end of the part of a log that no power cut removes any more.
func (d *disk) durable(r *replica) point.Serial {
	for i := len(r.log.records) - 1; i >= 0; i-- {
		if x := r.log.records[i]; x.at < d.synced {
			return x.serial
		}
	}
	return r.log.solid
}

// follow makes the copy of a partition that is to be fed by its head, where there is none.
func (d *disk) follow(r *replica, high point.Epoch) {
	if r.log == nil {
		r.log = &journal{}
		d.wrote(func() { r.log = nil })
	}
	if old := r.epoch; high > old {
		r.epoch = high
		d.wrote(func() { r.epoch = old })
	}
}

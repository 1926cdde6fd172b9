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

// journal is the log of a placement that has copies elsewhere. Its frames lie one behind the other: frame n of the log is number n of the
// partition.
//
//	frames     1 2 3 4 5 │6 7 8 9
//	                synced│
type journal struct {
	records []record
}

func (j *journal) end() point.Serial {
	if n := len(j.records); n > 0 {
		return j.records[n-1].serial
	}
	return point.Serial{}
}

// ends are, per epoch, the last frames of the log.
func (j *journal) ends() (ends []point.EpochEnd) {
	for _, r := range j.records {
		if n := len(ends); n > 0 && ends[n-1].Epoch == r.serial.Epoch {
			ends[n-1].Seq = r.serial.Seq
		} else {
			ends = append(ends, point.EpochEnd(r.serial))
		}
	}
	return ends
}

// find gives the record with a frame's number; nil: it is not here.
func (j *journal) find(s point.Serial) *record {
	if len(j.records) == 0 || s.Seq < j.records[0].serial.Seq {
		return nil
	}
	if i := s.Seq - j.records[0].serial.Seq; i < uint64(len(j.records)) && j.records[i].serial == s {
		return &j.records[i]
	}
	return nil
}

// after gives the frames behind a serial. found: the log reaches back to it.
func (j *journal) after(s point.Serial) (frames []record, found bool) {
	switch {
	case s == j.end():
		return nil, true
	case s == point.Serial{}:
		return j.records, j.records[0].prev == point.Serial{}
	case j.find(s) != nil:
		return j.records[s.Seq-j.records[0].serial.Seq+1:], true
	}
	i, _ := slices.BinarySearchFunc(j.records, s, func(r record, s point.Serial) int {
		if r.serial.Less(s) {
			return -1
		}
		return 1
	})
	return j.records[i:], i < len(j.records) && j.records[i].prev == s
}

// appendFrame logs and applies a frame behind the last one.
func (d *disk) appendFrame(r *replica, f *frame) {
	j := r.log
	at := d.synced + uint64(len(d.log))
	old, had := r.rows[f.row.key]
	high := r.high
	j.records = append(j.records, record{frame: f, at: at})
	r.apply(f, at)
	undo := func() {
		j.records = j.records[:len(j.records)-1]
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

// cutFrames takes the frames behind a serial off the log, and builds the rows anew from those that stay. It returns how many went.
func (d *disk) cutFrames(r *replica, after point.Serial) int {
	j := r.log
	n := len(j.records)
	for n > 0 && after.Less(j.records[n-1].serial) {
		n--
	}
	gone := slices.Clone(j.records[n:])
	rows, high := r.rows, r.high
	j.records = j.records[:n]
	r.rebuild()
	d.wrote(func() {
		j.records = append(j.records, gone...)
		r.rows, r.high = rows, high
	})
	return len(gone)
}

// rebuild makes the rows anew from the log.
func (r *replica) rebuild() {
	r.rows, r.high = map[keyID]cell{}, 0
	for _, x := range r.log.records {
		r.apply(x.frame, x.at)
	}
}

// cutTorn takes a torn record off the end of the log, at a start.
func (r *replica) cutTorn(w *world) {
	j := r.log
	if n := len(j.records); n > 0 && j.records[n-1].torn {
		w.mark(tornFrame)
		if w.opt.broken == tornTaken {
			j.records[n-1] = record{frame: j.records[n-1].halved(), at: j.records[n-1].at}
		} else {
			j.records = j.records[:n-1]
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

// durable gives the end of the part of a log that no power cut takes away any more.
func (d *disk) durable(r *replica) point.Serial {
	for i := len(r.log.records) - 1; i >= 0; i-- {
		if x := r.log.records[i]; x.at < d.synced {
			return x.serial
		}
	}
	return point.Serial{}
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

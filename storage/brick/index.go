package brick

import (
	"cmp"
	"slices"
	"sort"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// extent is the place of one live record: 32 bytes a record, however long the record is.
type extent struct {
	epoch  point.Epoch
	seq    uint64
	file   uint32
	offset uint32 // of its first chunk
	bytes  uint32 // in the file, chunk headers and padding included
}

func (e extent) serial() point.Serial { return point.Serial{Epoch: e.epoch, Seq: e.seq} }
func (e extent) end() position        { return at(e.file, int64(e.offset)+int64(e.bytes)) }

// privateLog is the brick's state of one placement.
type privateLog struct {
	epoch point.Epoch  // highest ever seen, durable in the catalogue
	last  point.Serial // of the newest record, live or not
	ext   []extent     // live records, a tail of buf's array. Invariant: serials and positions rise strictly
	buf   []extent     // the array from its start, to move ext back to
	bytes int64        // sum of ext[i].bytes
}

// fileUse is the index's state of one file of the common log.
type fileUse struct {
	bytes   int64 // written
	live    int64 // in extents
	extents int
	pins    int  // readers and rewrites that need it although no extent may name it
	open    bool // its writer has not ended it; it stays
}

// index records which bytes of which files which placement still needs. Pure bookkeeping: no lock, no I/O.
type index struct {
	logs  map[point.PlacementID]*privateLog
	files map[uint32]*fileUse
	bytes int64 // of all files
	live  int64 // of all extents
}

func newIndex() index {
	return index{logs: map[point.PlacementID]*privateLog{}, files: map[uint32]*fileUse{}}
}

// of finds or makes the entry of p.
func (x *index) of(p point.PlacementID) *privateLog {
	l := x.logs[p]
	if l == nil {
		l = &privateLog{}
		x.logs[p] = l
	}
	return l
}

func (x *index) addFile(n uint32, bytes int64, open bool) {
	x.files[n] = &fileUse{bytes: bytes, open: open}
	x.bytes += bytes
}

func (x *index) removeFile(n uint32) {
	x.bytes -= x.files[n].bytes
	delete(x.files, n)
}

// grew counts bytes written to file n that belong to no placement, or not yet to an extent.
func (x *index) grew(n uint32, bytes int64) {
	x.files[n].bytes += bytes
	x.bytes += bytes
}

func (x *index) add(l *privateLog, e extent) {
	l.push(e)
	l.last = e.serial()
	l.bytes += int64(e.bytes)
	x.count([]extent{e}, 1)
}

// push appends; where at least half of the array is free in front, ext moves back instead of growing.
func (l *privateLog) push(e extent) {
	if n := len(l.ext); n == cap(l.ext) {
		if cap(l.buf) > 0 && 2*n <= cap(l.buf) {
			l.ext = l.buf[:copy(l.buf[:n], l.ext)]
		} else {
			l.ext = slices.Grow(l.ext, max(4, n/4))
			l.buf = l.ext[:0]
		}
	}
	l.ext = append(l.ext, e)
}

// extentsKept is how many extents an empty private log keeps room for.
const extentsKept = 64

// count adds (sign 1) or subtracts (sign -1) extents in the figures of their files.
func (x *index) count(ext []extent, sign int64) {
	for i := 0; i < len(ext); {
		f, n, bytes := x.files[ext[i].file], 0, int64(0)
		for ; i+n < len(ext) && ext[i+n].file == ext[i].file; n++ {
			bytes += int64(ext[i+n].bytes)
		}
		f.extents += int(sign) * n
		f.live += sign * bytes
		x.live += sign * bytes
		if f.extents < 0 || f.live < 0 {
			fault.Bug("log file %d has %d extents of %d bytes", ext[i].file, f.extents, f.live)
		}
		i += n
	}
}

// release releases l's extents up to and including serial s, and returns them, valid until the next change. Cost: a binary search
// and one step per released record.
func (x *index) release(l *privateLog, s point.Serial) []extent {
	n := sort.Search(len(l.ext), func(i int) bool { return s.Less(l.ext[i].serial()) })
	return x.shrink(l, l.ext[:n], l.ext[n:])
}

// truncate releases l's extents behind serial s, and returns them. The log then ends at s.
func (x *index) truncate(l *privateLog, s point.Serial) []extent {
	n := sort.Search(len(l.ext), func(i int) bool { return s.Less(l.ext[i].serial()) })
	if s.Less(l.last) {
		l.last = s
	}
	return x.shrink(l, l.ext[n:], l.ext[:n])
}

func (x *index) shrink(l *privateLog, gone, kept []extent) []extent {
	x.count(gone, -1)
	for _, e := range gone {
		l.bytes -= int64(e.bytes)
	}
	l.ext = kept
	if len(kept) == 0 && cap(l.buf) > extentsKept {
		l.ext, l.buf = nil, nil
	}
	return gone
}

// replace replaces all of l's extents by others: copies, or none.
func (x *index) replace(l *privateLog, ext []extent) {
	x.count(l.ext, -1)
	x.count(ext, 1)
	l.ext, l.buf, l.bytes = ext, ext[:0], 0
	for _, e := range ext {
		l.bytes += int64(e.bytes)
	}
}

// pin keeps the files of ext until unpin.
func (x *index) pin(ext []extent)   { x.pinBy(ext, 1) }
func (x *index) unpin(ext []extent) { x.pinBy(ext, -1) }

func (x *index) pinBy(ext []extent, n int) {
	for i, e := range ext {
		if i == 0 || e.file != ext[i-1].file {
			x.files[e.file].pins += n
		}
	}
}

// dead lists the files that are no longer needed, oldest first. It never lists the newest file: its number shows which numbers were used.
func (x *index) dead() []uint32 {
	var ns []uint32
	newest := x.newest()
	for n, f := range x.files {
		if f.extents == 0 && f.pins == 0 && !f.open && n != newest {
			ns = append(ns, n)
		}
	}
	slices.Sort(ns)
	return ns
}

func (x *index) newest() (newest uint32) {
	for n := range x.files {
		newest = max(newest, n)
	}
	return newest
}

// Pin is a placement that holds old log files: a candidate for a flush or a Rewrite.
type Pin struct {
	Placement point.PlacementID
	Oldest    point.Serial // its first live record
	File      uint32       // the file that record lies in
	Records   int          // live records of the placement
	Bytes     int64        // of log, in all files
	Behind    int64        // log bytes in File and all newer files: the most that can be freed once p releases its records
}

// pins lists at most limit placements by the age of their first live record, oldest first.
func (x *index) pins(limit int) []Pin {
	all := make([]Pin, 0, len(x.logs))
	for p, l := range x.logs {
		if len(l.ext) > 0 {
			all = append(all, Pin{Placement: p, Oldest: l.ext[0].serial(), File: l.ext[0].file, Records: len(l.ext), Bytes: l.bytes})
		}
	}
	slices.SortFunc(all, func(a, b Pin) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(x.logs[a.Placement].ext[0].offset, x.logs[b.Placement].ext[0].offset))
	})
	all = all[:min(limit, len(all))]
	for i := range all {
		for n, f := range x.files {
			if n >= all[i].File {
				all[i].Behind += f.bytes
			}
		}
	}
	return all
}

package segment

import (
	"encoding/binary"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
)

// The header is the last key of a file, written when all counts are known, and the first that a reader reads. A segment describes itself
// completely but for its placement: from the files alone a catalogue can be rebuilt (Describe).
//
//	header        in the file and in the catalogue, and compared at Open: a file under the name of another is found so
//	size, sum     in the catalogue alone, as they are of the whole file

// The versions of the header. A segment is written in the lowest that has room for its lists, so that programs from before read it.
const (
	formatPlain     = 1 // neither range nor deletions; only read
	formatDescribed = 2 // deletions have no ranks; written where there are none
	formatRanks     = 3
)

// Range is the rectangle of its table's keyspace that a partition covers.
type Range struct {
	TimeLo  point.Nanos `json:"time_lo"`
	TimeHi  point.Nanos `json:"time_hi"` // exclusive
	PointLo uint64      `json:"point_lo,omitempty"`
	PointHi uint64      `json:"point_hi,omitempty"` // exclusive; 0 means 2^64
}

// Meta is the caller's description of a segment for the writer.
type Meta struct {
	Table     string            `json:"table"`
	Partition point.PartitionID `json:"partition"`
	ID        point.SegmentID   `json:"id"`
	Base      point.SegmentID   `json:"base"`  // the segment before it; zero for the first (C49)
	Major     bool              `json:"major"` // holds all rows and all definitions up to Ends
	Ends      []point.EpochEnd  `json:"ends"`  // frames contained, per epoch, in rising order of epochs (C51)

	// Range is that of the partition, so that a lost catalogue can be rebuilt from the segments; nil: not given.
	Range *Range `json:"range,omitempty"`
	// Deletions are those among the frames contained: they hide rows of the segments that this one is based on, and not
	// its own. Only the segment itself keeps them: the catalogue has them at the segments that they hide rows of.
	Deletions []Deletion `json:"-"`
	// Remembered, of a major: deletions that it carried out, or that one below it did. Rows that come later with a lower rank stay hidden.
	Remembered []Deletion `json:"-"`
}

// Deletion is one with its rank: above that of all rows it hides; 0 where it is not known.
type Deletion struct {
	frame.Deletion
	Rank point.Stamp
}

func (m *Meta) formatVersion() int {
	if len(m.Deletions)+len(m.Remembered) > 0 {
		return formatRanks
	}
	return formatDescribed
}

// Info describes a finished segment. The catalogue keeps it and an offer carries it; it marshals to JSON.
type Info struct {
	Meta
	FormatVersion int    `json:"format_version"`
	Size          int64  `json:"size"`     // bytes of the file
	Checksum      uint64 `json:"checksum"` // xxhash64 of the whole file

	Rows        uint64 `json:"rows"`        // float samples and histograms
	Series      uint64 `json:"series"`      // that have rows here
	Definitions uint64 `json:"definitions"` // labels held here
	Exemplars   uint64 `json:"exemplars"`

	TimeLo point.Nanos `json:"time_lo"` // of all rows; 0 when there are none
	TimeHi point.Nanos `json:"time_hi"`

	StampLo point.Stamp `json:"stamp_lo"` // of all rows; 0 when there are none
	StampHi point.Stamp `json:"stamp_hi"`

	// RankedRows are those with a rank of their own; others count as the highest of their chunk. RankBytes is their size. Only the file has them.
	RankedRows uint64 `json:"-"`
	RankBytes  uint64 `json:"-"`
}

// Settings of a Writer. They do not change the bytes.
type Settings struct {
	// BytesPerSync is how much is passed to the disk at a time while writing, so that the fsync at the end does not
	// delay those of the log. Bytes, default 1 MiB. Smaller: smoother, more calls.
	BytesPerSync int
}

// headerMax bounds the header record; most of it is Ends.
// An end has two uvarints: a partition would need 50,000 epochs to come near it.
const headerMax = 1 << 20

// appendHeader writes all fields of an Info but Size and Checksum, which are of the whole file.
func appendHeader(dst []byte, i *Info) []byte {
	dst = append(dst, byte(i.FormatVersion), b2u(i.Major))
	dst = binary.AppendUvarint(dst, uint64(len(i.Table)))
	dst = append(dst, i.Table...)
	for _, v := range []uint64{uint64(i.Partition), uint64(i.ID.Epoch), i.ID.Seq, uint64(i.Base.Epoch), i.Base.Seq,
		i.Rows, i.Series, i.Definitions, i.Exemplars, zigzag(i.TimeLo), zigzag(i.TimeHi),
		uint64(i.StampLo), uint64(i.StampHi), uint64(len(i.Ends))} {
		dst = binary.AppendUvarint(dst, v)
	}
	for _, e := range i.Ends {
		dst = binary.AppendUvarint(dst, uint64(e.Epoch))
		dst = binary.AppendUvarint(dst, e.Seq)
	}
	if i.FormatVersion == formatPlain {
		return dst
	}
	dst = append(dst, b2u(i.Range != nil))
	if r := i.Range; r != nil {
		dst = binary.AppendVarint(binary.AppendVarint(dst, r.TimeLo), r.TimeHi)
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, r.PointLo), r.PointHi)
	}
	dst = i.appendDeletions(dst, i.Deletions)
	if i.FormatVersion >= formatRanks {
		dst = i.appendDeletions(dst, i.Remembered)
	}
	return dst
}

func (i *Info) appendDeletions(dst []byte, ds []Deletion) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(ds)))
	var b []byte
	for n := range ds {
		b = frame.AppendDeletion(b[:0], &ds[n].Deletion)
		dst = append(binary.AppendUvarint(dst, uint64(len(b))), b...)
		if i.FormatVersion >= formatRanks {
			dst = binary.AppendUvarint(dst, uint64(ds[n].Rank))
		}
	}
	return dst
}

// appendRanked writes what the header has no place for: programs from before there were ranks pass over the record.
func appendRanked(dst []byte, i *Info) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, i.RankedRows), i.RankBytes)
}

func (i *Info) parseRanked(b []byte) error {
	c := cursor{b: b}
	i.RankedRows, i.RankBytes = c.uvarint(), c.uvarint()
	if !c.end() || i.RankedRows == 0 || i.RankedRows > i.Rows {
		return errForm("record of the rows with ranks")
	}
	return nil
}

func b2u(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// parseHeader reads what appendHeader wrote. Errors: Invalid (a version that this program does not read: the file is whole, and another
// program reads it), Corrupt.
func parseHeader(b []byte) (Info, error) {
	if len(b) > 0 && (b[0] < formatPlain || b[0] > formatRanks) {
		return Info{}, fault.Errorf(fault.Invalid, "format version %d, this program reads up to %d", b[0], formatRanks)
	}
	c := cursor{b: b}
	i := Info{FormatVersion: int(c.byte())}
	i.Major = c.byte() == 1
	i.Table = string(c.bytes(c.count(len(c.b))))
	i.Partition = point.PartitionID(c.uvarint())
	i.ID = point.SegmentID{Epoch: point.Epoch(c.uvarint()), Seq: c.uvarint()}
	i.Base = point.SegmentID{Epoch: point.Epoch(c.uvarint()), Seq: c.uvarint()}
	i.Rows, i.Series, i.Definitions, i.Exemplars = c.uvarint(), c.uvarint(), c.uvarint(), c.uvarint()
	i.TimeLo, i.TimeHi = c.varint(), c.varint()
	i.StampLo, i.StampHi = point.Stamp(c.uvarint()), point.Stamp(c.uvarint())
	for range c.count(len(c.b)) { // an end has two bytes at least
		i.Ends = append(i.Ends, point.EpochEnd{Epoch: point.Epoch(c.uvarint()), Seq: c.uvarint()})
		if c.bad {
			break
		}
	}
	if i.FormatVersion != formatPlain {
		if err := i.parseRest(&c); err != nil {
			return Info{}, err
		}
	}
	if !c.end() {
		return Info{}, errForm("header")
	}
	return i, nil
}

// parseRest reads the fields added in versions 2 and 3.
func (i *Info) parseRest(c *cursor) error {
	if c.byte() == 1 {
		i.Range = &Range{TimeLo: c.varint(), TimeHi: c.varint(), PointLo: c.uvarint(), PointHi: c.uvarint()}
	}
	var err error
	if i.Deletions, err = i.parseDeletions(c); err == nil && i.FormatVersion >= formatRanks {
		i.Remembered, err = i.parseDeletions(c)
	}
	return err
}

func (i *Info) parseDeletions(c *cursor) (ds []Deletion, err error) {
	for range c.count(len(c.b)) {
		var d Deletion
		if d.Deletion, err = frame.ParseDeletion(c.bytes(c.count(len(c.b)))); c.bad || err != nil {
			return nil, errForm("header: deletion")
		}
		if i.FormatVersion >= formatRanks {
			d.Rank = point.Stamp(c.uvarint())
		}
		ds = append(ds, d)
	}
	return ds, nil
}

// Described reports whether the segment names its partition: table, number and range.
func (i Info) Described() bool { return i.Range != nil }

// same reports whether two descriptions are of one segment, ignoring size and checksum of the file, and deletions.
func (i *Info) same(o *Info) bool {
	// They are compared as bytes: a field that is added to the header is compared without a change here.
	a, b := *i, *o
	a.Size, a.Checksum, b.Size, b.Checksum = 0, 0, 0, 0
	a.Deletions, b.Deletions, a.Remembered, b.Remembered = nil, nil, nil, nil
	return string(appendHeader(nil, &a)) == string(appendHeader(nil, &b))
}

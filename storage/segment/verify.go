package segment

import (
	"encoding/binary"
	"io"
	"slices"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// Checksum reads a whole file and returns its Info.Checksum. A file from a peer is checked with it before it is opened.
// Errors: Corrupt (no such file), Unavailable (disk).
func Checksum(fs vfs.FS, path string) (sum uint64, size int64, err error) {
	return ChecksumPaced(fs, path, func(int) error { return nil })
}

// pieceBytes is how much of a file is read at a time to sum it.
const pieceBytes = 256 << 10

// ChecksumPaced is Checksum that calls pace after each piece it reads, with its bytes. An error of pace ends it and is
// returned as it is.
func ChecksumPaced(fs vfs.FS, path string, pace func(bytes int) error) (sum uint64, size int64, err error) {
	f, err := fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return 0, 0, diskError(err, path)
	}
	defer func() { _ = f.Close() }()
	h := xxhash.New()
	piece := make([]byte, pieceBytes)
	for {
		n, err := io.ReadFull(f, piece)
		_, _ = h.Write(piece[:n]) // never fails
		size += int64(n)
		if err := pace(n); err != nil {
			return 0, 0, err
		}
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return h.Sum64(), size, nil
		case err != nil:
			return 0, 0, diskError(err, path)
		}
	}
}

// Describe returns a segment's own description, for segments that are in no catalogue, and checks every byte. Errors: Corrupt, Invalid
// (format version), Unavailable.
func Describe(fs vfs.FS, path string, cache *Cache) (Info, error) {
	r, err := Open(fs, path, Info{}, cache)
	if err != nil {
		return Info{}, err
	}
	defer func() { _ = r.Close() }()
	if err := r.Verify(); err != nil {
		return Info{}, err
	}
	info := r.Info()
	info.Checksum, info.Size, err = Checksum(fs, path)
	return info, err
}

// DescribeCopy is Describe of a copy of a file that another server has sealed, with the checksum and size that it has there. The file is summed before it is
// opened, then what Check reads is checked, and no rows are decoded: their bytes are those that were sealed. Errors: as Describe; Corrupt also if the file
// has another checksum or size.
func DescribeCopy(fs vfs.FS, path string, sum uint64, size int64, cache *Cache) (Info, error) {
	found, n, err := Checksum(fs, path)
	if err != nil {
		return Info{}, err
	}
	if n != size || found != sum {
		return Info{}, fault.Errorf(fault.Corrupt, "segment %s: %d bytes with checksum %016x instead of %d with %016x; it has to be fetched again", path, n, found, size, sum)
	}
	r, err := Open(fs, path, Info{}, cache)
	if err != nil {
		return Info{}, err
	}
	defer func() { _ = r.Close() }()
	if err := r.Check(); err != nil {
		return Info{}, err
	}
	info := r.Info()
	info.Checksum, info.Size = found, n
	return info, nil
}

// What reads which part:
//
//	Checksum   all bytes, from the disk                      scrubs, and files that come from a peer
//	Check      header, definitions, names, postings, series  before the catalogue names a segment
//	Verify     all of it, decoded, and the counts            spillway verify, and rebuilding a catalogue

// Verify reads everything: the whole-file checksum, then every record, block and row, and compares the counts with the
// header. It reads the disk, not the cache, for the checksum. Errors: Corrupt, Unavailable.
func (r *Reader) Verify() error {
	if err := r.acquire(); err != nil {
		return err
	}
	defer func() { _ = r.release() }()
	sum, size, err := Checksum(r.fs, r.path)
	if err != nil {
		return err
	}
	if size != r.info.Size || r.info.Checksum != 0 && sum != r.info.Checksum {
		return fault.Errorf(fault.Corrupt, "segment %s: %d bytes with checksum %016x instead of %d with %016x; it has to be fetched from a peer",
			r.path, size, sum, r.info.Size, r.info.Checksum)
	}
	if err := r.file.Load().sst.ValidateBlockChecksums(); err != nil {
		return diskError(err, r.path)
	}
	for _, check := range []func() error{r.verifyDefinitions, r.verifyRows, r.verifyExemplars} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// Check reads the parts that every query needs, without which the whole file is of no use: header, definitions, names, postings and the set
// of series. It costs a tenth of Verify. A segment is checked before the catalogue names it. Errors: Corrupt, Unavailable.
func (r *Reader) Check() error {
	n, last := uint64(0), int64(-1)
	if err := r.LendDefinitions(func(id point.DenseID, _ point.Labels) error {
		n++
		if int64(id) <= last {
			return fault.Errorf(fault.Corrupt, "segment %s: definition of series %d follows %d", r.path, id, last)
		}
		last = int64(id)
		return nil
	}); err != nil {
		return err
	}
	if err := r.disagree("definitions", n, r.info.Definitions); err != nil {
		return err
	}
	if err := r.checkPostings(); err != nil {
		return err
	}
	ids, err := r.SeriesIDs()
	if err != nil {
		return err
	}
	return r.disagree("series", ids.GetCardinality(), r.info.Series)
}

// checkPostings reads the record of names and every page of postings, and compares the number of pages.
func (r *Reader) checkPostings() error {
	names, err := r.names()
	if err != nil {
		return err
	}
	want := uint64(0)
	for i := range names {
		want += uint64(len(names[i].firsts))
	}
	pages := uint64(0)
	if err := r.each(keyPostings, func(key, value []byte) error {
		if len(key) != len(keyPosting(nil, 0, 0)) || binary.BigEndian.Uint32(key[1:]) == moreNames {
			return nil
		}
		pages++
		if err := eachPosting(value, r.cache.decoder, func(string, cursor) bool { return true }); err != nil {
			return r.corrupt(key, err)
		}
		return nil
	}); err != nil {
		return err
	}
	return r.disagree("pages of postings", pages, want)
}

func (r *Reader) disagree(what string, have, want uint64) error {
	if have == want {
		return nil
	}
	return fault.Errorf(fault.Corrupt, "segment %s: %d %s, the header says %d", r.path, have, what, want)
}

// verifyDefinitions is Check's walk over definitions, and decodes the postings' ids.
func (r *Reader) verifyDefinitions() error {
	n := uint64(0)
	last := int64(-1)
	if err := r.LendDefinitions(func(id point.DenseID, _ point.Labels) error {
		n++
		if int64(id) <= last {
			return fault.Errorf(fault.Corrupt, "segment %s: definition of series %d follows %d", r.path, id, last)
		}
		last = int64(id)
		return nil
	}); err != nil {
		return err
	}
	if err := r.disagree("definitions", n, r.info.Definitions); err != nil {
		return err
	}
	return r.verifyPostings()
}

// verifyPostings decodes the ids of all values, and counts the values of each name.
func (r *Reader) verifyPostings() error {
	names, err := r.names()
	if err != nil {
		return err
	}
	for i := range names {
		n := &names[i]
		values := 0
		var bad error
		if err := r.eachValue(n, 0, len(n.firsts), func(_ string, ids cursor) bool {
			values++
			bad = addRuns(roaring.New(), ids)
			return bad == nil
		}); err != nil {
			return err
		}
		if bad != nil {
			return r.corrupt(keyPosting(nil, n.number, 0), bad)
		}
		if err := r.disagree("values of label "+n.name, uint64(values), uint64(n.values)); err != nil {
			return err
		}
	}
	return nil
}

// verifyRows scans, with the ranks of rows, and asks places for every series that it meets.
func (r *Reader) verifyRows() error {
	seen := roaring.New()
	var order []point.DenseID
	var n uint64
	c, err := r.Cursor()
	if err != nil {
		return err
	}
	c.s.ranked = true
	var ranked uint64
	if err := c.each(func(id point.DenseID, run rows.Run) error {
		ranked = c.s.rankedRows
		n += uint64(run.Len())
		lo, hi, _ := run.Bounds()
		if lo < r.info.TimeLo || hi > r.info.TimeHi || run.StampLo < r.info.StampLo || run.StampHi > r.info.StampHi {
			return fault.Errorf(fault.Corrupt, "segment %s: rows of series %d lie outside of the ranges in the header", r.path, id)
		}
		seen.Add(uint32(id))
		order = append(order, id)
		return nil
	}); err != nil {
		return err
	}
	ids, err := r.SeriesIDs()
	if err != nil {
		return err
	}
	if !ids.Equals(seen) {
		return fault.Errorf(fault.Corrupt, "segment %s: the set of series is not that of the groups", r.path)
	}
	if err := r.disagree("rows", n, r.info.Rows); err != nil {
		return err
	}
	if err := r.disagree("rows with ranks of their own", ranked, r.info.RankedRows); err != nil {
		return err
	}
	if err := r.disagree("series", seen.GetCardinality(), r.info.Series); err != nil {
		return err
	}
	return r.verifyPlaces(order)
}

// verifyPlaces asks for the place of every series; in file order they must be those of the scan.
func (r *Reader) verifyPlaces(order []point.DenseID) error {
	t, err := r.iter()
	if err != nil {
		return err
	}
	var all []wanted
	err = r.eachPlace(t, order, func(i int, at place) { all = append(all, wanted{placed{order[i], at}, int32(i)}) })
	if cerr := t.close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if !slices.EqualFunc(inFileOrder(all), order, func(p wanted, id point.DenseID) bool { return p.id == id }) {
		return fault.Errorf(fault.Corrupt, "segment %s: the places of series are not those of the groups", r.path)
	}
	return nil
}

func (r *Reader) verifyExemplars() error {
	var n uint64
	if err := r.each(keyExemplars, func(key, value []byte) error {
		ex, err := parseExemplars(value, r.cache.decoder)
		n += uint64(len(ex))
		return r.corrupt(key, err)
	}); err != nil {
		return err
	}
	return r.disagree("exemplars", n, r.info.Exemplars)
}

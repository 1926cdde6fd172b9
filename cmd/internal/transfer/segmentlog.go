package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/zstd"
)

// The write-ahead logs of Prometheus' TSDB are directories of numbered segments. A segment is a row of pages, a page a row
// of fragments, and a record is one fragment or several; none goes from one segment into the next.
//
//	page 32 KiB   fragment … fragment, zeros to the end
//	fragment      kind and packing, 1 byte │ length, 2 bytes │ CRC-32C, 4 bytes │ body
//	kind          1 whole record · 2 its first fragment · 3 one in its middle · 4 its last
//	packing       8 snappy, 16 zstd, of the whole record
//
// Prometheus' package wlog reads them too, but brings the package testing into the program, and stops at the first damage.
const (
	segmentPageBytes      = 32 << 10
	fragmentHeaderBytes   = 7
	segmentRecordBytesMax = 64 << 20 // of a record, unpacked; a scrape of half a million samples

	fragmentWhole, fragmentFirst, fragmentMiddle, fragmentLast = 1, 2, 3, 4
	fragmentKinds, fragmentSnappy, fragmentZstd                = 7, 8, 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segmentDamage is where a segment cannot be read on.
type segmentDamage struct {
	path   string
	offset int64 // of the record that could not be read
	left   int64 // bytes from there to the end of the file
	torn   bool  // the file ends inside of the record
	reason error
}

func (d *segmentDamage) Error() string {
	return fmt.Sprintf("%s from byte %d on, %d bytes: %v", d.path, d.offset, d.left, d.reason)
}

func (d *segmentDamage) Unwrap() error { return d.reason }

// segment is one file of a log.
type segment struct {
	path string
	size int64
	last bool // of its log: a crash may have torn its end
}

// segmentsIn lists the segments in a directory with numbers higher than the given one; none if the directory does not exist.
func segmentsIn(dir string, above int) (all []segment, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	type numbered struct {
		segment
		n int
	}
	var found []numbered
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil || n <= above || e.IsDir() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		found = append(found, numbered{segment{path: filepath.Join(dir, e.Name()), size: info.Size()}, n})
	}
	slices.SortFunc(found, func(a, b numbered) int { return a.n - b.n })
	for _, f := range found {
		all = append(all, f.segment)
	}
	if len(all) > 0 {
		all[len(all)-1].last = true
	}
	return all, nil
}

// lastCheckpoint returns the newest checkpoint of a log, which stands for the segments up to its number; "" and -1 if there
// is none.
func lastCheckpoint(wal string) (dir string, number int) {
	number = -1
	found, _ := filepath.Glob(filepath.Join(wal, "checkpoint.*")) // the pattern is good
	for _, path := range found {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), "checkpoint."))
		if err == nil && n > number {
			dir, number = path, n
		}
	}
	return dir, number
}

// segmentReader reads the records of one segment.
type segmentReader struct {
	of     segment
	f      *os.File
	buf    [segmentPageBytes]byte
	page   []byte // the part of buf that was not read yet
	end    int64  // offset in the file behind the bytes in buf
	short  bool   // the file ends with buf
	record []byte
	plain  []byte
	zstd   *zstd.Decoder
}

func openSegment(of segment) (*segmentReader, error) {
	f, err := os.Open(of.path)
	if err != nil {
		return nil, err
	}
	return &segmentReader{of: of, f: f}, nil
}

func (r *segmentReader) close() {
	r.f.Close()
	if r.zstd != nil {
		r.zstd.Close()
	}
}

// offset is that of the next fragment.
func (r *segmentReader) offset() int64 { return r.end - int64(len(r.page)) }

// next returns the next record, good until the next call; io.EOF at the end, and a *segmentDamage where it cannot go on.
func (r *segmentReader) next() ([]byte, error) {
	r.record = r.record[:0]
	begin := r.offset()
	damage := func(torn bool, reason error) error {
		return &segmentDamage{path: r.of.path, offset: begin, left: r.of.size - begin, torn: torn, reason: reason}
	}
	for part := 0; ; part++ {
		head, body, err := r.fragment()
		switch {
		case err == io.EOF && part == 0:
			return nil, io.EOF
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return nil, damage(true, errors.New("the file ends inside of a record"))
		case err != nil:
			return nil, damage(false, err)
		}
		kind := head & fragmentKinds
		if starts := kind == fragmentWhole || kind == fragmentFirst; starts != (part == 0) || kind > fragmentLast {
			return nil, damage(false, fmt.Errorf("fragment %d of a record is of kind %d", part, kind))
		}
		if len(r.record)+len(body) > segmentRecordBytesMax {
			return nil, damage(false, errors.New("the record is too large"))
		}
		r.record = append(r.record, body...)
		if kind == fragmentWhole || kind == fragmentLast {
			rec, err := r.unpack(head)
			if err != nil {
				return nil, damage(false, err)
			}
			return rec, nil
		}
	}
}

// fragment returns the next one: io.ErrUnexpectedEOF if the file ends inside.
func (r *segmentReader) fragment() (head byte, body []byte, err error) {
	for {
		if len(r.page) == 0 {
			n, err := io.ReadFull(r.f, r.buf[:])
			if n == 0 {
				return 0, nil, err
			}
			if err != nil && err != io.ErrUnexpectedEOF {
				return 0, nil, err
			}
			r.page, r.short = r.buf[:n], n < len(r.buf)
			r.end += int64(n)
		}
		if r.page[0] != 0 {
			break
		}
		for _, c := range r.page { // zeros to the end of the page
			if c != 0 {
				return 0, nil, errors.New("there is something behind the end of a page")
			}
		}
		r.page = nil
	}
	tooShort := errors.New("a fragment goes beyond its page")
	if r.short {
		tooShort = io.ErrUnexpectedEOF
	}
	if len(r.page) < fragmentHeaderBytes {
		return 0, nil, tooShort
	}
	n := int(binary.BigEndian.Uint16(r.page[1:]))
	if fragmentHeaderBytes+n > len(r.page) {
		return 0, nil, tooShort
	}
	head, body = r.page[0], r.page[fragmentHeaderBytes:fragmentHeaderBytes+n]
	if got, want := crc32.Checksum(body, castagnoli), binary.BigEndian.Uint32(r.page[3:]); got != want {
		return 0, nil, fmt.Errorf("checksum %08x, want %08x", got, want)
	}
	r.page = r.page[fragmentHeaderBytes+n:]
	return head, body, nil
}

func (r *segmentReader) unpack(head byte) (_ []byte, err error) {
	switch {
	case head&fragmentSnappy != 0:
		if n, err := snappy.DecodedLen(r.record); err != nil || n > segmentRecordBytesMax {
			return nil, fmt.Errorf("a record of %d bytes, packed (%v)", n, err)
		}
		r.plain, err = snappy.Decode(r.plain[:cap(r.plain)], r.record)
	case head&fragmentZstd != 0:
		if r.zstd == nil {
			if r.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(segmentRecordBytesMax)); err != nil {
				return nil, err
			}
		}
		r.plain, err = r.zstd.DecodeAll(r.record, r.plain[:0])
	default:
		return r.record, nil
	}
	return r.plain, err
}

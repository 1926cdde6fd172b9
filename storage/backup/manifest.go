package backup

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Content is the input of a backup.
type Content struct {
	Store   string // identity of the store
	Entries []Entry
	// Segments are readable at their Path until the content is released.
	Segments []Segment
	// Missing lists the parts that the backup lacks, each with the reason.
	Missing []string
	// Dropped reports whether a placement is not in the store any more, and the key of its entry. Nil: all are there.
	Dropped func(point.PlacementID) (key []byte, dropped bool)
}

// Entry is a key of the catalogue with its value.
type Entry struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

// Segment is a file of a placement.
type Segment struct {
	Placement point.PlacementID `json:"placement"`
	Epoch     point.Epoch       `json:"epoch"`
	Seq       uint64            `json:"seq"`
	Size      int64             `json:"size"`
	Checksum  uint64            `json:"checksum"` // xxhash64 of the whole file

	Path string `json:"-"` // in the store
}

// name returns the name of the segment's file in a place with backups: the same bytes have the same name.
func (s *Segment) name() string { return fmt.Sprintf("%016x-%d.seg", s.Checksum, s.Size) }

// segmentOf returns the segment that a file in the folder of segments has by its name; false: it has the name of none.
func segmentOf(file string) (segmentFile, bool) {
	var s Segment
	_, err := fmt.Sscanf(file, "%16x-%d.seg", &s.Checksum, &s.Size)
	return segmentFile{s.Checksum, s.Size}, err == nil && s.name() == file
}

func isSegment(file string) bool {
	_, ok := segmentOf(file)
	return ok
}

// isBackup reports whether a file at the top of a place has the name of a backup.
func isBackup(file string) bool {
	name, ok := strings.CutSuffix(file, suffix)
	at, err := time.Parse(nameFormat, name)
	return ok && err == nil && at.Format(nameFormat) == name // Parse accepts a comma, too
}

// Ours reports whether a file of a place, or an upload to it, has the name of a backup or of a segment.
func Ours(name string) bool {
	if file, ok := strings.CutPrefix(name, SegmentsDir+"/"); ok {
		return isSegment(file)
	}
	return isBackup(name)
}

// Manifest is the content of a backup's file.
type Manifest struct {
	Version  int
	Made     time.Time // rows acked before it are in the backup
	Program  string
	Store    string
	Missing  []string
	Removed  bool // the backup was removed: its file is there until its removal is durable, and has nothing to restore
	Entries  []Entry
	Segments []Segment
	Tables   []Table // those of a cluster; nil: it is a backup of one store
}

// manifestHead is a manifest without its long lists, as its file has it in JSON.
type manifestHead struct {
	Version int       `json:"version"`
	Made    time.Time `json:"made"`
	Program string    `json:"program,omitempty"`
	Store   string    `json:"store"`
	Missing []string  `json:"missing,omitempty"`
	Removed bool      `json:"removed,omitempty"`

	cluster  bool // it has tables
	negative bool // a segment has a negative size
}

func (m *Manifest) head() *manifestHead {
	return &manifestHead{Version: m.Version, Made: m.Made, Program: m.Program, Store: m.Store, Missing: m.Missing, Removed: m.Removed}
}

// Table is a table of a cluster in a backup.
type Table struct {
	Name string `json:"name"`
	// Map is the partition map by which the partitions were backed up (topology.Map.Encode).
	Map        []byte              `json:"map"`
	Families   []point.MetadataRow `json:"families,omitempty"`
	Partitions []Part              `json:"partitions"`
	// Staged are the files with rows that waited for their leaders, by Seq: segments of the placement 0 (FORMAT.md).
	Staged []uint64 `json:"staged,omitempty"`
}

// Part is a partition of a cluster in a backup: one placement of it, as its leader had it.
type Part struct {
	ID        point.PartitionID `json:"id"`
	Placement point.PlacementID `json:"placement,omitempty"` // 0: it had no rows
	Server    string            `json:"server,omitempty"`
	Taken     time.Time         `json:"taken"` // rows acked before it are in the backup, those of the manifest's time at the least
}

// SegmentsDir is the folder of a place that has the segments.
const SegmentsDir = "segments"

const (
	formatVersion  = 1 // of one store
	clusterVersion = 2 // of a cluster
	suffix         = ".backup"
	lockName       = "LOCK"
	tempSuffix     = ".tmp"
	sumForm        = "xxh64 %016x\n"
	sumBytes       = len("xxh64 0123456789abcdef\n")

	// manifestMax bounds a manifest: some 3 million segments.
	manifestMax = 1 << 30
)

// nameFormat is the name of a backup: its time, UTC. Names sort by time.
const nameFormat = "20060102T150405.000Z"

func (m *Manifest) name() string { return m.Made.UTC().Format(nameFormat) }

// Bytes is the size of all segments.
func (m *Manifest) Bytes() (n int64) {
	for i := range m.Segments {
		n += m.Segments[i].Size
	}
	return n
}

// pieces are the bytes of a manifest's file, in order: a head, each entry, each segment, each table, and the line with their checksum. Marshalled whole, those of a large store are
// a gigabyte. A piece is valid until the next one is asked for.
func (m *Manifest) pieces() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		sum := xxhash.New()
		put := func(b []byte, err error) bool {
			_, _ = sum.Write(b) // never fails
			return yield(b, fault.Wrap(err, fault.Internal, "manifest of a backup"))
		}
		list := func(key string, n int, at func(i int) any) bool {
			if !put([]byte(`,"`+key+`":[`), nil) {
				return false
			}
			var b bytes.Buffer
			for i := range n {
				b.Reset()
				if i > 0 {
					b.WriteByte(',')
				}
				one, err := json.Marshal(at(i))
				if b.Write(one); !put(b.Bytes(), err) {
					return false
				}
			}
			return put([]byte("]"), nil)
		}
		head, err := json.Marshal(m.head())
		if put(bytes.TrimSuffix(head, []byte("}")), err) &&
			list("entries", len(m.Entries), func(i int) any { return &m.Entries[i] }) &&
			list("segments", len(m.Segments), func(i int) any { return &m.Segments[i] }) &&
			(m.Tables == nil || list("tables", len(m.Tables), func(i int) any { return &m.Tables[i] })) &&
			put([]byte("}\n"), nil) {
			yield(sumLine(sum.Sum64()), nil)
		}
	}
}

// pieceReader reads the bytes of pieces.
type pieceReader struct {
	next func() ([]byte, error, bool)
	rest []byte
}

// Read implements io.Reader.
func (r *pieceReader) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(r.rest) == 0 {
			b, err, ok := r.next()
			if !ok && n == 0 {
				return 0, io.EOF
			}
			if !ok || err != nil {
				return n, err
			}
			r.rest = b
		}
		k := copy(p[n:], r.rest)
		n, r.rest = n+k, r.rest[k:]
	}
	return n, nil
}

func sumLine(sum uint64) []byte { return fmt.Appendf(nil, sumForm, sum) }

// manifestReader reads a manifest's file, and keeps of its long lists what the functions do.
type manifestReader struct {
	entry   func(*Entry) error
	segment func(*Segment) error
	table   func(*Table) error
	ended   error // by one of them
}

// read reads a file of so many bytes. The functions may be called before an error is met. Errors: Corrupt, Invalid (a later version), and those of r.
func (p *manifestReader) read(r io.Reader, size int64) (*manifestHead, error) {
	if size < int64(sumBytes) {
		return nil, fault.Errorf(fault.Corrupt, "%d bytes are too few", size)
	}
	if size > manifestMax {
		return nil, fault.Errorf(fault.Corrupt, "%d bytes are more than any backup's file has", size)
	}
	src, sum := &source{r: r}, xxhash.New()
	body := io.TeeReader(io.LimitReader(src, size-int64(sumBytes)), sum)
	var head manifestHead
	parsed := p.object(json.NewDecoder(body), &head)
	end := make([]byte, sumBytes)
	_, _ = io.Copy(io.Discard, body) // src has the error
	_, _ = io.ReadFull(src, end)
	switch {
	case p.ended != nil:
		return nil, p.ended
	case src.err != nil && src.err != io.EOF:
		return nil, src.err
	case !bytes.Equal(end, sumLine(sum.Sum64())):
		return nil, fault.Errorf(fault.Corrupt, "the checksum does not match")
	case parsed != nil:
		return nil, fault.Wrap(parsed, fault.Corrupt, "not what a backup says")
	case head.Version != formatVersion && head.Version != clusterVersion:
		return nil, fault.Errorf(fault.Invalid, "it is of version %d, and this program reads versions %d and %d", head.Version, formatVersion, clusterVersion)
	}
	return &head, nil
}

// source remembers the first error of a reader.
type source struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.err = cmp.Or(s.err, err)
	return n, err
}

// object reads the object of a manifest.
func (p *manifestReader) object(d *json.Decoder, head *manifestHead) error {
	if err := delim(d, '{'); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		switch key {
		case "version":
			err = d.Decode(&head.Version)
		case "made":
			err = d.Decode(&head.Made)
		case "program":
			err = d.Decode(&head.Program)
		case "store":
			err = d.Decode(&head.Store)
		case "missing":
			err = d.Decode(&head.Missing)
		case "removed":
			err = d.Decode(&head.Removed)
		case "entries":
			err = each(p, d, p.entry)
		case "segments":
			err = each(p, d, func(g *Segment) error { head.negative = head.negative || g.Size < 0; return p.segment(g) })
		case "tables":
			head.cluster = true
			err = each(p, d, p.table)
		default:
			err = d.Decode(&json.RawMessage{})
		}
		if err != nil {
			return err
		}
	}
	if head.negative {
		return errors.New("a segment has a negative size")
	}
	return delim(d, '}')
}

// each reads a list, or null.
func each[T any](p *manifestReader, d *json.Decoder, f func(*T) error) error {
	t, err := d.Token()
	if err != nil || t == nil {
		return err
	}
	if t != json.Delim('[') {
		return fmt.Errorf("%v, where a list is expected", t)
	}
	for d.More() {
		var one T
		if err := d.Decode(&one); err != nil {
			return err
		}
		if p.ended = f(&one); p.ended != nil {
			return p.ended
		}
	}
	return delim(d, ']')
}

func delim(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err == nil && t != want {
		err = fmt.Errorf("%v, where %v is expected", t, want)
	}
	return err
}

// The memory of the items of a backup's lists, with the slack of lists that grow.
const (
	entryBytes   = 96
	segmentBytes = 112
	partBytes    = 160
	familyBytes  = 200
)

// Bytes is the memory of an entry.
func (e *Entry) Bytes() int64 { return entryBytes + int64(len(e.Key)+len(e.Value)) }

// SegmentsBytes is the memory of n segments.
func SegmentsBytes(n int) int64 { return segmentBytes * int64(n) }

// Bytes is the memory of a table, twice that of its map, which is decoded.
func (t *Table) Bytes() int64 {
	return entryBytes + 2*int64(len(t.Map)) + partBytes*int64(len(t.Partitions)) + familyBytes*int64(len(t.Families))
}

// Bytes is the memory of the lists.
func (c *Content) Bytes() int64 {
	n := SegmentsBytes(len(c.Segments))
	for i := range c.Entries {
		n += c.Entries[i].Bytes()
	}
	return n
}

// decode reads a manifest, of which it books the memory by hold. Errors: as of read, and those of hold.
func decode(r io.Reader, size int64, hold func(bytes int64) error) (*Manifest, error) {
	var m Manifest
	p := manifestReader{
		entry:   func(e *Entry) error { m.Entries = append(m.Entries, *e); return hold(e.Bytes()) },
		segment: func(g *Segment) error { m.Segments = append(m.Segments, *g); return hold(segmentBytes) },
		table:   func(t *Table) error { m.Tables = append(m.Tables, *t); return hold(t.Bytes()) },
	}
	head, err := p.read(r, size)
	if err != nil {
		return nil, err
	}
	m.Version, m.Made, m.Program, m.Store, m.Missing, m.Removed = head.Version, head.Made, head.Program, head.Store, head.Missing, head.Removed
	if head.cluster && m.Tables == nil {
		m.Tables = []Table{} // of a cluster without tables
	}
	return &m, nil
}

// Listed is a backup in a place.
type Listed struct {
	Name     string
	Err      error // it cannot be read, and nothing below is set
	Made     time.Time
	Missing  []string
	Cluster  bool
	Tables   int // of a cluster
	Segments int
	Bytes    int64 // of all segments
}

// List returns the backups of a place, oldest first. Errors: Unavailable.
func List(ctx context.Context, at Place) ([]Listed, error) {
	names, err := names(ctx, at)
	if err != nil {
		return nil, err
	}
	var out []Listed
	for _, name := range names {
		l := Listed{Name: name}
		p := manifestReader{
			entry:   func(*Entry) error { return nil },
			segment: func(g *Segment) error { l.Segments++; l.Bytes += g.Size; return nil },
			table:   func(*Table) error { l.Tables++; return nil },
		}
		head, err := read(ctx, at, name, p.read)
		if err != nil {
			l = Listed{Name: name, Err: err}
		} else {
			l.Made, l.Missing, l.Cluster = head.Made, head.Missing, head.cluster
		}
		out = append(out, l)
	}
	return out, nil
}

// names lists the names of the backups of a place, oldest first.
func names(ctx context.Context, at Place) (names []string, _ error) {
	files, err := at.List(ctx, "")
	for n := range files {
		if name, ok := strings.CutSuffix(n, suffix); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, err
}

// load reads a backup's manifest.
func load(ctx context.Context, at Place, name string, hold func(bytes int64) error) (*Manifest, error) {
	return read(ctx, at, name, func(r io.Reader, size int64) (*Manifest, error) { return decode(r, size, hold) })
}

// read has a function read the file of a backup, and returns what it does.
func read[T any](ctx context.Context, at Place, name string, with func(r io.Reader, size int64) (*T, error)) (*T, error) {
	if strings.ContainsAny(name, `/\`) {
		return nil, fault.Errorf(fault.Invalid, "a backup has no name like %.100q: it has no slash, and lies in %s itself", name, at)
	}
	f, size, err := at.Read(ctx, name+suffix)
	if fault.Is(err, fault.NotFound) {
		return nil, fault.Errorf(fault.NotFound, "%s holds no backup %q", at, name)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out, err := with(bufio.NewReaderSize(f, copyBuffer), size)
	return out, fault.Annotate(err, "%s in %s", name+suffix, at)
}

// Load loads the named backup, the newest where name is "", and returns its name. Errors: NotFound, Corrupt, Invalid (a later version, a backup that was removed, a name with a slash, or
// the newest is dated in the future), Unavailable, and those of Settings.Memory.
func Load(ctx context.Context, at Place, name string, set Settings) (string, *Manifest, error) {
	return pick(ctx, at, name, set)
}

// aheadMax is how far the clocks of hosts that make and restore backups may differ.
const aheadMax = time.Hour

// pick loads the named backup. Without a name it loads the newest: of the backups whose names are times if there are some, else of all. If the newest is dated in the
// future, a clock was wrong, the order is not known, and the error asks for a name.
func pick(ctx context.Context, at Place, name string, set Settings) (string, *Manifest, error) {
	if name == "" {
		names, err := at.List(ctx, "")
		if err != nil {
			return "", nil, err
		}
		other := ""
		for n := range names {
			of, ok := strings.CutSuffix(n, suffix)
			switch {
			case ok && isBackup(n):
				name = max(name, of)
			case ok:
				other = max(other, of)
			}
		}
		if name = cmp.Or(name, other); name == "" {
			return "", nil, fault.Errorf(fault.NotFound, "%s holds no backup", at)
		}
		if made, err := time.Parse(nameFormat, name); err == nil && time.Until(made) > aheadMax {
			return "", nil, fault.Errorf(fault.Invalid, "the newest backup in %s, %q, is dated in the future: the clock of the host that made it was wrong, or this one's is; "+
				"name one with --backup, `spillway restore --list` shows them", at, name)
		}
	}
	m, err := load(ctx, at, name, set.Hold)
	if err == nil && m.Removed {
		return "", nil, fault.Errorf(fault.Invalid, "backup %q in %s was removed, and there is nothing to restore: name another one with --backup, `spillway restore --list` shows them", name, at)
	}
	return name, m, err
}

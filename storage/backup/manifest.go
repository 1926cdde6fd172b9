package backup

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
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

// Manifest is the content of a backup's file. It marshals to JSON.
type Manifest struct {
	Version  int       `json:"version"`
	Made     time.Time `json:"made"` // rows acked before it are in the backup
	Program  string    `json:"program,omitempty"`
	Store    string    `json:"store"`
	Missing  []string  `json:"missing,omitempty"`
	Entries  []Entry   `json:"entries"`
	Segments []Segment `json:"segments"`
	// Tables are those of a cluster; nil: it is a backup of one store.
	Tables []Table `json:"tables,omitempty"`
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

func (m *Manifest) encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "manifest of a backup")
	}
	b = append(b, '\n')
	return append(b, sumLine(xxhash.Sum64(b))...), nil
}

func sumLine(sum uint64) []byte { return fmt.Appendf(nil, sumForm, sum) }

// decode reads a manifest. Errors: Corrupt, Invalid (a later version).
func decode(b []byte) (*Manifest, error) {
	if len(b) < sumBytes {
		return nil, fault.Errorf(fault.Corrupt, "%d bytes are too few", len(b))
	}
	body, end := b[:len(b)-sumBytes], b[len(b)-sumBytes:]
	if !bytes.Equal(end, sumLine(xxhash.Sum64(body))) {
		return nil, fault.Errorf(fault.Corrupt, "the checksum does not match")
	}
	var m Manifest
	d := json.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(&m); err != nil {
		return nil, fault.Wrap(err, fault.Corrupt, "not what a backup says")
	}
	if m.Version != formatVersion && m.Version != clusterVersion {
		return nil, fault.Errorf(fault.Invalid, "it is of version %d, and this program reads versions %d and %d", m.Version, formatVersion, clusterVersion)
	}
	for i := range m.Segments {
		if m.Segments[i].Size < 0 {
			return nil, fault.Errorf(fault.Corrupt, "segment %d has a negative size", i)
		}
	}
	return &m, nil
}

// Listed is a backup in a place.
type Listed struct {
	Name     string
	Manifest *Manifest // nil: Err has the reason
	Err      error
}

// List returns the backups of a place, oldest first. Errors: Unavailable.
func List(ctx context.Context, at Place) ([]Listed, error) {
	names, err := names(ctx, at)
	if err != nil {
		return nil, err
	}
	var out []Listed
	for _, name := range names {
		m, err := load(ctx, at, name)
		out = append(out, Listed{name, m, err})
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
func load(ctx context.Context, at Place, name string) (*Manifest, error) {
	f, size, err := at.Read(ctx, name+suffix)
	if fault.Is(err, fault.NotFound) {
		return nil, fault.Errorf(fault.NotFound, "%s holds no backup %q", at, name)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > manifestMax {
		return nil, fault.Errorf(fault.Corrupt, "%s has %d bytes, more than any backup", name+suffix, size)
	}
	b, err := io.ReadAll(io.LimitReader(f, size+1))
	if err != nil {
		return nil, fault.Annotate(err, "read %s", name+suffix)
	}
	m, err := decode(b)
	return m, fault.Annotate(err, "%s in %s", name+suffix, at)
}

// Load loads the named backup, the newest where name is "", and returns its name. Errors: NotFound, Corrupt, Invalid (a later version, or the newest is dated in the
// future), Unavailable.
func Load(ctx context.Context, at Place, name string) (string, *Manifest, error) {
	return pick(ctx, at, name)
}

// aheadMax is how far the clocks of hosts that make and restore backups may differ.
const aheadMax = time.Hour

// pick loads the named backup. Without a name it loads the newest: of the backups whose names are times if there are some, else of all. If the newest is dated in the
// future, a clock was wrong, the order is not known, and the error asks for a name.
func pick(ctx context.Context, at Place, name string) (string, *Manifest, error) {
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
	m, err := load(ctx, at, name)
	return name, m, err
}

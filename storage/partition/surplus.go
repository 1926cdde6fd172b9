package partition

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Surplus is a file with the frames that were cut off a placement's log: each has the labels of all its series, so that it can be
// inserted anywhere. FORMAT.md draws it. It stays until ForgetSurplus removes it.
type Surplus struct {
	After  point.Serial // the frame behind which the log was cut
	No     int          // of several that were cut behind it, from 0
	Path   string
	Frames int
	Bytes  int64
}

const (
	// SurplusSuffix ends the name of a surplus file.
	SurplusSuffix = ".surplus"
	surplusMagic  = "spillway surplus 1\n"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// surplusPath is beside the segments: it goes with them when the placement is dropped.
func (p *Partition) surplusPath(after point.Serial, no int) string {
	return p.deps.Brick.FS().PathJoin(p.deps.Brick.SegmentDir(p.ident.Placement), surplusName(after, no))
}

func surplusName(after point.Serial, no int) string {
	if no > 0 {
		return fmt.Sprintf("%d-%d.%d%s", after.Epoch, after.Seq, no, SurplusSuffix)
	}
	return fmt.Sprintf("%d-%d%s", after.Epoch, after.Seq, SurplusSuffix)
}

// setAside writes the frames behind a serial into a file of their own, durably. Cut twice, the same frames make the same file. Other frames, of a later epoch that
// ended at once too, make another.
func (p *Partition) setAside(after point.Serial) (*Surplus, error) {
	b := p.deps.Brick
	if err := b.MakeSegmentDir(p.ident.Placement); err != nil {
		return nil, err
	}
	s := &Surplus{After: after, Path: p.surplusPath(after, 0)}
	// The order of a cut: this file durable, then Brick.Cut. A crash between leaves the frames in both: the cut is repeated, and the file is the same.
	tmp := s.Path + ".tmp"
	f, err := b.FS().Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "create %s", s.Path)
	}
	err = p.writeSurplus(f, s)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = p.nameSurplus(s, tmp)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "write %s", s.Path)
	}
	p.surplus.Store(true)
	return s, b.SyncSegmentDir(p.ident.Placement)
}

// nameSurplus gives a file its name, once it was read back as its reader will: the first of those behind its serial that is free, or has the
// same content.
func (p *Partition) nameSurplus(s *Surplus, tmp string) error {
	fs := p.deps.Brick.FS()
	b, err := readAll(fs, tmp)
	if err == nil {
		err = p.eachSurplus(b, s.After, func(*frame.Frame) error { return nil })
	}
	for ; err == nil; s.No++ {
		s.Path = p.surplusPath(s.After, s.No)
		var there []byte
		there, err = readAll(fs, s.Path)
		if oserror.IsNotExist(err) || err == nil && bytes.Equal(there, b) {
			return fs.Rename(tmp, s.Path)
		}
	}
	return err
}

// HasSurplus reports whether there may be surplus files.
func (p *Partition) HasSurplus() bool { return p.surplus.Load() }

// writeSurplus writes the whole file but for its fsync.
func (p *Partition) writeSurplus(to io.Writer, s *Surplus) error {
	sum := crc32.New(castagnoli)
	buffered := bufio.NewWriter(io.MultiWriter(sum, to)) // a vfs.File may change the bytes it is given
	put := func(b []byte) error {
		s.Bytes += int64(len(b))
		_, err := buffered.Write(b)
		return err
	}
	if err := put(p.appendSurplusHead(nil, s.After)); err != nil {
		return err
	}
	var d frame.Decoder
	var f frame.Frame
	var enc frame.Encoder
	err := p.deps.Brick.Replay(p.ident.Placement, s.After, func(_ point.Serial, rec []byte) error {
		if err := d.Decode(rec, &f); err != nil {
			return err
		}
		// It has no rows, and means nothing outside of this log.
		if f.Kind == frame.Freeze {
			return nil
		}
		return p.selfContained(&f, func(g *frame.Frame) error {
			b := enc.Append(nil, g)
			s.Frames++
			return put(append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...))
		})
	})
	if err == nil {
		err = put(make([]byte, 4)) // no frame follows
	}
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		return err
	}
	s.Bytes += crc32.Size
	_, err = to.Write(binary.LittleEndian.AppendUint32(nil, sum.Sum32()))
	return err
}

// appendSurplusHead encodes magic, table, partition, placement and the serial, so that a file found alone says what its rows belong to.
func (p *Partition) appendSurplusHead(b []byte, after point.Serial) []byte {
	b = append(b, surplusMagic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(p.ident.Table)))
	b = append(b, p.ident.Table...)
	for _, n := range []uint64{uint64(p.ident.Partition), uint64(p.ident.Placement), uint64(after.Epoch), after.Seq} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

// selfContained calls put with frames that hold the rows of f and define every series that they name. There is more than one if
// the labels of all would not fit. Rows keep their rank.
func (p *Partition) selfContained(f *frame.Frame, put func(*frame.Frame) error) error {
	if f.Kind == frame.Delete {
		return put(f)
	}
	g, err := p.defining(f)
	if err != nil {
		return err
	}
	err = g.Check()
	if err == nil {
		return put(g)
	}
	n := max(len(f.IDs), len(f.Hists), len(f.Exemplars))
	if !fault.Is(err, fault.TooLarge) || n <= 1 {
		return err
	}
	cut := func(n int) int { return n / 2 }
	lo, hi := *f, *f
	i, h, e := cut(len(f.IDs)), cut(len(f.Hists)), cut(len(f.Exemplars))
	lo.IDs, lo.Times, lo.Values, lo.Hists, lo.Exemplars = f.IDs[:i], f.Times[:i], f.Values[:i], f.Hists[:h], f.Exemplars[:e]
	hi.IDs, hi.Times, hi.Values, hi.Hists, hi.Exemplars = f.IDs[i:], f.Times[i:], f.Values[i:], f.Hists[h:], f.Exemplars[e:]
	if err := p.selfContained(&lo, put); err != nil {
		return err
	}
	return p.selfContained(&hi, put)
}

// defining returns f with its series defined and numbered by their order in it. Without the labels of one of them nothing may be cut: its rows
// would be lost, and those beside them, since the file could not be read.
func (p *Partition) defining(f *frame.Frame) (_ *frame.Frame, err error) {
	x := p.ids.Load()
	g := &frame.Frame{Kind: f.Kind, Serial: f.Serial, Prev: f.Prev, Stamp: f.Stamp, Foreign: true, Times: f.Times, Values: f.Values}
	numbers := map[point.DenseID]point.DenseID{}
	number := func(id point.DenseID) point.DenseID {
		n, ok := numbers[id]
		if !ok {
			n = point.DenseID(len(g.Defs))
			numbers[id] = n
			l, failed := p.readLabels(x, id)
			if failed != nil {
				err = failed
			}
			g.Defs = append(g.Defs, l)
		}
		return n
	}
	for _, id := range f.IDs {
		g.IDs = append(g.IDs, number(id))
	}
	for _, h := range f.Hists {
		h.ID = number(h.ID)
		g.Hists = append(g.Hists, h)
	}
	for _, e := range f.Exemplars {
		e.ID = number(e.ID)
		g.Exemplars = append(g.Exemplars, e)
	}
	return g, err
}

// SurplusFiles lists the surplus files that were not removed, also those from before the process started.
func (p *Partition) SurplusFiles() (list []Surplus, err error) {
	b := p.deps.Brick
	p.surplus.Store(false) // first: one that comes meanwhile sets it again
	defer func() {
		if err != nil || len(list) > 0 {
			p.surplus.Store(true)
		}
	}()
	names, err := b.FS().List(b.SegmentDir(p.ident.Placement))
	if oserror.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "list the surplus of partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	for _, name := range names {
		var s Surplus
		if n, _ := fmt.Sscanf(name, "%d-%d.%d", &s.After.Epoch, &s.After.Seq, &s.No); n < 2 {
			continue
		}
		if s.Path = p.surplusPath(s.After, s.No); s.Path != b.FS().PathJoin(b.SegmentDir(p.ident.Placement), name) {
			continue
		}
		st, err := b.FS().Stat(s.Path)
		if oserror.IsNotExist(err) { // forgotten meanwhile
			continue
		}
		if err != nil {
			return nil, fault.Wrap(err, fault.Unavailable, "look at surplus file %s", s.Path)
		}
		s.Bytes = st.Size()
		list = append(list, s)
	}
	return list, nil
}

// ReadSurplus calls f with each frame of a surplus file, once all of the file was checked. The frame is valid until f returns. An
// error of f ends it and is returned. Other errors: Corrupt, Unavailable.
func (p *Partition) ReadSurplus(s *Surplus, f func(*frame.Frame) error) error {
	b, err := readAll(p.deps.Brick.FS(), s.Path)
	if err == nil {
		err = p.eachSurplus(b, s.After, func(*frame.Frame) error { return nil })
	}
	if err != nil {
		return fault.Annotate(err, "surplus file %s", s.Path)
	}
	return p.eachSurplus(b, s.After, f)
}

func readAll(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "open")
	}
	b, err := io.ReadAll(f)
	return b, fault.Wrap(errors.Join(err, f.Close()), fault.Unavailable, "read")
}

// eachSurplus reads the output of writeSurplus. It may be of another placement of the partition, which was removed: a person put it here.
func (p *Partition) eachSurplus(b []byte, after point.Serial, f func(*frame.Frame) error) error {
	head := p.appendSurplusHead(nil, after)
	of := len(head) - 3*8 // the placement
	if len(b) < len(head) || !bytes.Equal(b[:of], head[:of]) || !bytes.Equal(b[of+8:len(head)], head[of+8:]) {
		return fault.Errorf(fault.Corrupt, "it does not begin as the surplus of this partition behind %v does", after)
	}
	_, err := eachSurplus(b, f)
	return err
}

// eachSurplus reads a file of any placement: its head, and then its frames, once the sum of all fits.
func eachSurplus(b []byte, f func(*frame.Frame) error) (of SurplusContent, err error) {
	end := len(b) - crc32.Size
	if end < len(surplusMagic)+4 || string(b[:len(surplusMagic)]) != surplusMagic {
		return of, fault.Errorf(fault.Corrupt, "it does not begin as a surplus file of version 1 does")
	}
	if got, want := crc32.Checksum(b[:end], castagnoli), binary.LittleEndian.Uint32(b[end:]); got != want {
		return of, fault.Errorf(fault.Corrupt, "checksum %08x, should be %08x", got, want)
	}
	if b, err = of.cutHead(b[len(surplusMagic):end]); err != nil {
		return of, err
	}
	var d frame.Decoder
	var fr frame.Frame
	for {
		if len(b) < 4 {
			return of, fault.Errorf(fault.Corrupt, "it ends within a frame")
		}
		n := int64(binary.LittleEndian.Uint32(b))
		b = b[4:]
		switch {
		case n == 0 && len(b) == 0:
			return of, nil
		case n == 0 || n > int64(len(b)):
			return of, fault.Errorf(fault.Corrupt, "a frame of %d bytes, where %d are left", n, len(b))
		}
		if err := d.Decode(b[:n], &fr); err != nil {
			return of, err
		}
		if err := f(&fr); err != nil {
			return of, err
		}
		b = b[n:]
	}
}

// ForgetSurplus removes a surplus file, once its rows are durable elsewhere.
func (p *Partition) ForgetSurplus(s *Surplus) error {
	b := p.deps.Brick
	if err := b.FS().Remove(s.Path); err != nil && !oserror.IsNotExist(err) {
		return fault.Wrap(err, fault.Unavailable, "remove %s", s.Path)
	}
	return b.SyncSegmentDir(p.ident.Placement)
}

// PutSurplusAside moves the surplus files of a closed placement to lost+found. It is for one that leaves the map while its partition goes on elsewhere:
// they hold rows that only it had, and no map says any more where those belong.
func (p *Partition) PutSurplusAside() error {
	files, err := p.SurplusFiles()
	if err != nil {
		return err
	}
	for _, s := range files {
		why := fmt.Sprintf("rows that only this copy of partition %s/%d had, and that had not reached its leader when the copy was removed", p.ident.Table, p.ident.Partition)
		if err := p.deps.Brick.PutAside(s.Path, why); err != nil {
			return err
		}
	}
	return nil
}

// isSurplus reports whether a file in the directory of a placement is one that Cut wrote.
func isSurplus(path string) bool { return strings.HasSuffix(path, SurplusSuffix) }

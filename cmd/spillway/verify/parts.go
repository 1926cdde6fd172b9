package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/gateway/mapcache"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/metafile"
	"github.com/spillwaydb/spillway/storage/overlay"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/segment"
)

// small checks the files that are read at a glance.
func (v *Verification) small() {
	for name, f := range v.Files {
		path := v.path(name)
		switch {
		case f.Kind == "lock" && f.Bytes > 0:
			v.say(path, FileSuspect, fmt.Sprintf("it has %d bytes, and should be empty", f.Bytes), doForget)
		case f.Kind == "map cache" && strings.HasSuffix(name, ".tmp"):
			v.say(path, fileUnused, "a cached map that was not finished", doLeftover)
		case f.Kind == "map cache":
			if err := mapcache.Check(path); err != nil {
				v.say(path, FileSuspect, err.Error(), doForget)
			}
		case name == "settings.yaml.new", f.Kind == kindLeftover:
			v.say(path, fileUnused, "it was not finished: the process was ended while it wrote it", doLeftover)
		case f.Kind == "restore":
			v.say(path, FileDamaged, "a restore into this directory has not ended; no process starts in it", "run `spillway restore` again: it goes on where it was; or empty the directory")
		case f.Kind == KindLetters:
			v.letters(path)
		case f.Kind == KindOther:
			v.found(path, "no process of Spillway makes such a file; it was not looked at")
		case f.Kind == "settings":
			if err := v.program.ReadSettings(path); err != nil {
				v.say(path, FileSuspect, err.Error(), "nothing: the next start writes it; no start reads it")
			}
		case f.Kind == "put aside":
			v.say(path, fileUnused, "a start did not know it and put it there", "look at it; it is deleted in time")
		case f.Kind == "segment" && strings.HasSuffix(name, segment.TempSuffix):
			v.say(path, fileUnused, "a file that was not finished: nothing depends on it", doLeftover)
		case f.Kind == "segment" && !strings.HasSuffix(name, ".seg"):
			v.say(path, fileUnused, "it is no segment", doUnknown)
		}
	}
}

// copies checks the files beside catalogue and log that reveal damage to them.
func (v *Verification) copies() {
	for path, err := range brick.CheckCopies(overlay.New(vfs.Default), v.dir, v.logDir) {
		v.say(path, FileSuspect, err.Error(), doForget)
	}
}

// tables checks every block of the sorted tables of both databases, and reports whether all fit.
func (v *Verification) tables() (ok bool) {
	ok = true
	for name, f := range v.Files {
		if !strings.HasSuffix(name, ".sst") || f.Kind != "catalogue" && f.Kind != "coordination" {
			continue
		}
		if err := verifyTable(v.path(name)); err != nil {
			v.say(v.path(name), FileDamaged, err.Error(), doRestore)
			ok = false
		}
	}
	return ok
}

// verifyTable checks the checksum of every block of a pebble table.
func verifyTable(path string) (err error) {
	f, err := vfs.Default.Open(path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	defer func() {
		if p := recover(); p != nil { // pebble trusts the contents of a footer
			err = fault.Errorf(fault.Corrupt, "no readable table: %v", p)
		}
	}()
	r, err := sstable.NewReader(context.Background(), readable, sstable.ReaderOptions{})
	if err != nil {
		return errors.Join(err, readable.Close())
	}
	return errors.Join(r.ValidateBlockChecksums(), r.Close())
}

// namedSegment is the catalogue's entry of a segment; the zero value is no entry.
type namedSegment struct{ info segment.Info }

// rehearse starts the store on a file system that keeps all changes in memory, and returns the segments that the
// catalogue names, by path; nil when it cannot be read.
func (v *Verification) rehearse(ctx context.Context, tablesOK bool) map[string]namedSegment {
	if !tablesOK { // a database that reads a damaged block may end the process
		v.say(filepath.Join(v.dir, aStart), FileDamaged, "not tried, because of damaged tables", doWaitForOpen)
		return nil
	}
	said := &startLog{v: v}
	p, err := v.program.Start(ctx, v.dir, v.logDir, overlay.New(vfs.Default), slog.New(said))
	var named map[string]namedSegment
	if p.Brick != nil {
		var scanErr error
		if named, scanErr = v.named(p.Brick); scanErr != nil && err == nil {
			err = scanErr
		}
	}
	if p.Served {
		v.metadata(p.Brick)
	}
	said.stop() // messages of closing are about this process
	closing := p.Close()
	if err == nil {
		err = closing
	}
	if err != nil {
		v.blame(FileDamaged, "a start would be refused: "+err.Error(), doStart)
	}
	return named
}

// named lists the segments of the catalogue, and notes the directories of dropped placements.
func (v *Verification) named(b *brick.Brick) (map[string]namedSegment, error) {
	out := map[string]namedSegment{}
	err := b.Scan(partition.StatePrefix(), func(_, value []byte) error {
		st, err := partition.DecodeState(bytes.Clone(value))
		if err != nil {
			return err
		}
		v.misplaced(&st.Identity)
		for _, g := range st.Segments {
			out[b.SegmentPath(st.Placement, g.ID)] = namedSegment{g.Info}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	dropped, err := partition.Dropping(b)
	for _, id := range dropped {
		v.dropped[b.SegmentDir(id)] = true
	}
	return out, err
}

// metadata reads every METADATA file.
func (v *Verification) metadata(b *brick.Brick) {
	disk := metafile.New(b)
	infos, err := disk.List()
	for _, i := range infos {
		if _, _, gerr := disk.Get(i.Table, i.Txn); gerr != nil && err == nil {
			err = gerr
		}
	}
	if err != nil {
		v.blame(FileDamaged, "METADATA: "+err.Error(), doRestore)
	}
}

// aStart stands for a file in findings about the start as a whole.
const aStart = "(start)"

// blame notes a finding about the file that a message names, or about the start as a whole.
func (v *Verification) blame(state, what, do string) {
	v.mu.Lock()
	found := ""
	for name := range v.Files {
		if strings.Contains(what, v.path(name)) && len(name) > len(found) {
			found = name
		}
	}
	v.mu.Unlock()
	if found == "" {
		found = aStart
	}
	v.say(v.path(found), state, what, do)
}

// startLog collects the log of a start: warnings and errors are findings.
type startLog struct {
	v     *Verification
	attrs []slog.Attr

	mu   sync.Mutex
	over bool
}

func (h *startLog) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
}

// Enabled implements slog.Handler.
func (h *startLog) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle implements slog.Handler.
func (h *startLog) Handle(_ context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return nil
	}
	text := []string{r.Message}
	attrs := slices.Clone(h.attrs)
	r.Attrs(func(a slog.Attr) bool { attrs = append(attrs, a); return true })
	for _, a := range attrs {
		text = append(text, fmt.Sprintf("%s=%v", a.Key, a.Value))
	}
	state, do := FileSuspect, doLook
	if r.Level >= slog.LevelError {
		state, do = FileDamaged, doStart
	}
	h.v.blame(state, strings.Join(text, " "), do)
	return nil
}

// WithAttrs implements slog.Handler.
func (h *startLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &startLog{v: h.v, attrs: append(slices.Clone(h.attrs), attrs...)}
}

// WithGroup implements slog.Handler.
func (h *startLog) WithGroup(string) slog.Handler { return h }

// segmentVerifier reads segments that no process uses; its methods may be called from many goroutines.
type segmentVerifier struct{ cache *segment.Cache }

// verifyCacheBytes is small: every block is read once.
const verifyCacheBytes = 16 << 20

func newSegmentVerifier() *segmentVerifier {
	return &segmentVerifier{segment.NewCache(verifyCacheBytes)}
}

func (s *segmentVerifier) close() { s.cache.Close() }

// verify reads a whole segment and compares it with the catalogue's entry, if there is one.
func (s *segmentVerifier) verify(path string, want namedSegment) (err error) {
	r, err := segment.Open(vfs.Default, path, want.info, s.cache)
	if err != nil {
		return err
	}
	return errors.Join(r.Verify(), r.Close())
}

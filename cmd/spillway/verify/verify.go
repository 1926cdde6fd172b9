package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
)

// Command examines a store that no process uses, and changes no byte. It reads every file of every kind, and then
// starts the store in memory, on a file system that writes nothing to the disk, and reports the messages of that start.
// It ends with 0 when the store is whole, with 1 when all acked rows can be read and something needs a look, with 2 when
// something is damaged or a start would be refused, with 3 when the store could not be examined, and with 4 when there is no store.
type Command struct {
	DataDir string `name:"data-dir" help:"The store: the data directory of a process that does not run." default:"./spillway-data" type:"path"`
	LogDir  string `name:"log-dir" help:"Where its log lies (default: as settings.yaml in the store says, else log in the store)." type:"path"`
	Output  string `name:"output" short:"o" help:"table or json." enum:"table,json" default:"table"`
	All     bool   `name:"all" help:"List the files that are whole, too."`
	Quiet   bool   `name:"quiet" short:"q" help:"Report no progress on the error output."`

	Program Program `kong:"-"` // set by main
}

// Program reads settings and opens stores as the processes of the program do.
type Program interface {
	// ReadSettings reads a file of settings; its error names the mistake.
	ReadSettings(path string) error
	// Start opens the store in dir, with its log in logDir, on the file system fs. Messages go to log. After an error Started has the parts that were
	// opened; the caller closes it in any case.
	Start(ctx context.Context, dir, logDir string, fs vfs.FS, log *slog.Logger) (Started, error)
}

// Started is a store that was opened, or a part of it.
type Started struct {
	Brick  *brick.Brick // nil: it was not opened
	Served bool         // its partitions were opened, too
	Close  func() error
}

// Exit codes of Command beside those of all commands that examine something.
const (
	exitUnseen  terminal.ExitCode = 3
	exitNoStore terminal.ExitCode = 4
)

// noStoreError says that a directory holds no store: then nothing in it was read.
type noStoreError struct{ error }

// Unwrap returns the message with its Kind.
func (e noStoreError) Unwrap() error { return e.error }

// States of a file, from best to worst.
const (
	FileOK      = "ok"      // every checksum fits
	fileUnused  = "unused"  // nothing names it; it may be removed
	FileSuspect = "suspect" // no acked row depends on this file, or a start goes on with a warning
	fileMissing = "missing"
	FileDamaged = "damaged"
)

var fileStates = []string{FileOK, fileUnused, FileSuspect, fileMissing, FileDamaged}

// File is a file of the store, or a finding of a start about the whole store.
type File struct {
	File  string `json:"file"`
	Kind  string `json:"kind"`
	State string `json:"state"`
	Bytes int64  `json:"bytes"`
	What  string `json:"what,omitempty"`
	Do    string `json:"do,omitempty"`
}

// Verification is one examination of a store.
type Verification struct {
	program     Program
	dir, logDir string
	out         io.Writer // progress; nil: none

	mu    sync.Mutex
	Files map[string]*File // by path, relative where it lies below dir

	dropped map[string]bool // directories of dropped placements, which a process removes piece by piece

	staged, surplus int // rows that wait outside of log and segments, of whole records

	aside map[string]partition.SurplusContent // of whole surplus files, by path

	bytes, total atomic.Int64 // read and to be read, of large files
}

// Run examines the store and prints the findings.
func (c *Command) Run() error {
	v := &Verification{program: c.Program, dir: c.DataDir, logDir: c.LogDir, out: os.Stderr, Files: map[string]*File{}, dropped: map[string]bool{}}
	if c.Quiet {
		v.out = nil
	}
	if err := v.look(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "spillway: "+err.Error())
		if errors.As(err, new(noStoreError)) {
			return exitNoStore
		}
		return exitUnseen
	}
	return v.print(os.Stdout, c.Output == "json", c.All)
}

// Examine examines the store in dir as the command does, in silence. Errors are Invalid and Unavailable: the store could not be examined.
func Examine(ctx context.Context, program Program, dir string) (*Verification, error) {
	v := &Verification{program: program, dir: dir, Files: map[string]*File{}, dropped: map[string]bool{}}
	return v, v.look(ctx)
}

// ExamineFiles looks at the files of dir that lie outside of log and segments, and starts nothing.
func ExamineFiles(program Program, dir string) (*Verification, error) {
	v := &Verification{program: program, dir: dir, Files: map[string]*File{}, dropped: map[string]bool{}}
	if err := v.find(); err != nil {
		return nil, err
	}
	v.small()
	v.stagedRows()
	v.surplusRows()
	return v, nil
}

// look collects the findings. Its error means that the store could not be examined.
func (v *Verification) look(ctx context.Context) error {
	if err := v.find(); err != nil {
		return err
	}
	if err := v.unlocked(); err != nil {
		return err
	}
	stop := v.progress()
	defer stop()
	v.small()
	v.stagedRows()
	v.surplusRows()
	v.copies()
	tables := v.tables()
	var named map[string]namedSegment
	if v.isStore() {
		named = v.rehearse(ctx, tables)
	}
	if err := v.segments(ctx, named); err != nil {
		return err
	}
	if err := v.unlocked(); err != nil {
		return fault.Annotate(err, "the store came into use while it was looked at; what was seen means nothing")
	}
	return nil
}

// logDirLine is the line of settings.yaml that names the log's directory.
var logDirLine = regexp.MustCompile(`(?m)^\s+log_dir: "?([^"\n]+?)"?$`)

// find lists the files of the store.
func (v *Verification) find() error {
	if v.logDir == "" {
		v.logDir = filepath.Join(v.dir, "log")
		if text, err := os.ReadFile(filepath.Join(v.dir, "settings.yaml")); err == nil {
			if m := logDirLine.FindSubmatch(text); m != nil {
				v.logDir = string(m[1])
			}
		}
	}
	if err := v.marked(); err != nil {
		return err
	}
	for _, dir := range []string{v.dir, v.logDir} {
		err := v.list(dir)
		if err != nil && (dir == v.dir || !os.IsNotExist(err)) {
			return fault.Wrap(err, fault.Unavailable, "look at the store")
		}
	}
	return nil
}

// list notes the files of a directory, which may be a link to one. Links are followed in it, not further down: a disk's segments or catalogue may lie behind one,
// and a link in lost+found may lead anywhere.
func (v *Verification) list(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		under, isDir := path, e.IsDir()
		if e.Type()&fs.ModeSymlink != 0 {
			if to, err := filepath.EvalSymlinks(path); err == nil {
				if info, err := os.Stat(to); err == nil {
					under, isDir = to, info.IsDir()
				}
			}
		}
		if !isDir {
			info, err := os.Lstat(under)
			if err != nil {
				return err
			}
			v.file(path).Bytes = info.Size()
			continue
		}
		err := filepath.WalkDir(under, func(below string, d fs.DirEntry, err error) error {
			if filepath.Base(below) == "lost+found" && os.IsPermission(err) {
				return fs.SkipDir // root's, of the disk that is mounted here: nothing of the store is in it
			}
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			v.file(path + strings.TrimPrefix(below, under)).Bytes = info.Size()
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// marked returns an error where neither directory has what only a store has, however damaged it is. It lists these two and no other: a
// directory that is no store may be that of a whole host.
func (v *Verification) marked() error {
	store, err := brick.Exists(vfs.Default, v.dir)
	if held, heldErr := backup.Held(vfs.Default, v.dir); err == nil && !store && heldErr == nil && held { // it has segments, too
		return noStoreError{fault.Errorf(fault.Invalid, "%s holds backups and no store; `spillway restore --from %[1]s --verify` checks them", v.dir)}
	}
	entries, err := os.ReadDir(v.dir)
	if err != nil && !os.IsNotExist(err) {
		return fault.Wrap(err, fault.Unavailable, "look at the store")
	}
	for _, e := range entries {
		if slices.Contains(storeMarks, e.Name()) || strings.HasPrefix(e.Name(), DeadLetters) {
			return nil
		}
	}
	logs, _ := os.ReadDir(v.logDir) // none: it is lost, or was never there
	if slices.ContainsFunc(logs, func(e fs.DirEntry) bool { return e.Name() == "STORE" || logFile.MatchString(e.Name()) }) {
		return nil
	}
	if err != nil {
		return noStoreError{fault.Errorf(fault.Invalid, "there is no directory %s; is --data-dir right?", v.dir)}
	}
	return noStoreError{fault.Errorf(fault.Invalid, "%s holds no store; is --data-dir right?", v.dir)}
}

// storeMarks are the names in a data directory by which it is a store's, or a gateway's. A LOCK, settings and lost+found are in other directories, too.
var storeMarks = []string{
	"STORE", "STORE.tmp", brick.RestoringFile, "WITNESS", "catalogue.mirror", "metadata.mirror",
	"catalogue", "catalogue.new", "coord", "cluster", "segments", StagedDir,
}

// logFile is the name of a file of the log.
var logFile = regexp.MustCompile(`^[0-9]{10}\.log$`)

// rel is the name of a file for people: below the store, without the store's path.
func (v *Verification) rel(path string) string {
	if rel, err := filepath.Rel(v.dir, path); err == nil && !strings.HasPrefix(rel, "..") {
		return filepath.ToSlash(rel)
	}
	return path
}

// path is the full path of a file.
func (v *Verification) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(v.dir, filepath.FromSlash(name))
}

// file returns the entry of a file; a new one counts as whole until a finding is noted.
func (v *Verification) file(path string) *File {
	v.mu.Lock()
	defer v.mu.Unlock()
	name := v.rel(path)
	f := v.Files[name]
	if f == nil {
		f = &File{File: name, Kind: v.kind(name), State: FileOK}
		v.Files[name] = f
	}
	return f
}

// kind returns the purpose of a file.
func (v *Verification) kind(name string) string {
	base := filepath.Base(name)
	switch dir := filepath.Dir(v.path(name)); {
	case slices.ContainsFunc([]string{"lost+found/", "lost+found.spillway/"}, func(at string) bool { return strings.HasPrefix(strings.TrimPrefix(name, "log/"), at) }):
		return "put aside"
	case base == "LOCK":
		return "lock"
	case base == "STORE":
		return "identity"
	case base == "STORE.tmp", strings.HasPrefix(name, "catalogue.new/"), strings.HasSuffix(name, ".mirror.tmp"):
		return kindLeftover
	case dir == v.logDir:
		return "log"
	case dir == filepath.Join(v.dir, "catalogue"):
		return "catalogue"
	case dir == filepath.Join(v.dir, "coord"):
		return "coordination"
	case dir == filepath.Join(v.dir, "cluster"):
		return "map cache"
	case strings.HasPrefix(name, "segments/") && strings.HasSuffix(name, partition.SurplusSuffix):
		return KindSurplus
	case strings.HasPrefix(name, "segments/"):
		return "segment"
	case dir == filepath.Join(v.dir, StagedDir):
		return KindStaged
	case name == "settings.yaml", name == "settings.yaml.new":
		return "settings"
	case strings.HasPrefix(name, DeadLetters) && dir == v.dir:
		return KindLetters
	case name == brick.RestoringFile:
		return "restore"
	case name == aStart:
		return "start"
	case dir == v.dir && (name == brick.NoteFile || name == brick.NoteFile+".tmp"):
		return "fence"
	case name == "WITNESS":
		return "witness"
	case name == "catalogue.mirror", name == "metadata.mirror":
		return "mirror"
	}
	return KindOther
}

// say notes a finding about a file; the worst state counts, and its first reason.
func (v *Verification) say(path, state, what, do string) {
	f := v.file(path)
	v.mu.Lock()
	defer v.mu.Unlock()
	if slices.Index(fileStates, state) > slices.Index(fileStates, f.State) {
		f.State, f.What, f.Do = state, what, do
	}
}

// Worst is the worst state of the files of a kind.
func (v *Verification) Worst(kind string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := FileOK
	for _, f := range v.Files {
		if (kind == "" || f.Kind == kind) && slices.Index(fileStates, f.State) > slices.Index(fileStates, w) {
			w = f.State
		}
	}
	return w
}

// progressPeriod is how often progress is reported.
const progressPeriod = 5 * time.Second

// progress prints on the error output how much was read.
func (v *Verification) progress() (stop func()) {
	if v.out == nil {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(progressPeriod):
				n, of := v.bytes.Load(), v.total.Load()
				fmt.Fprintf(v.out, "spillway verify: %d of %d MiB of segments, %.0f MiB/s\n", n>>20, of>>20, float64(n>>20)/time.Since(began).Seconds())
			}
		}
	}()
	return func() { close(quit); <-done }
}

// print shows the findings.
func (v *Verification) print(out io.Writer, asJSON, all bool) error {
	var shown []File
	kinds := map[string]int{}
	for _, f := range v.Files {
		kinds[f.Kind]++
		if all || f.State != FileOK {
			shown = append(shown, *f)
		}
	}
	slices.SortFunc(shown, func(x, y File) int {
		if d := slices.Index(fileStates, y.State) - slices.Index(fileStates, x.State); d != 0 {
			return d
		}
		return strings.Compare(x.File, y.File)
	})
	status, end := "whole", error(nil)
	switch v.Worst("") {
	case FileOK:
	case fileUnused, FileSuspect:
		status, end = "whole, with something to look at", terminal.Degraded
	default:
		status, end = "damaged", terminal.Broken
	}
	found := map[string]any{"status": status, "files": len(v.Files), "kinds": kinds, "staged_rows": v.staged, "surplus_rows": v.surplus, "findings": shown}
	err := terminal.Print(out, asJSON, found, func(w io.Writer) {
		fmt.Fprintf(w, "the store in %s is %s; %d files, %s of segments read\n", v.dir, status, len(v.Files), terminal.SizeText(v.bytes.Load()))
		v.printOutside(w, kinds)
		if len(shown) > 0 {
			fmt.Fprintln(w, "FILE\tKIND\tSTATE\tWHAT\tWHAT TO DO")
		}
		for _, f := range shown {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", f.File, f.Kind, f.State, oneLine(f.What), f.Do)
		}
	})
	if err != nil {
		return err
	}
	return end
}

// oneLine keeps a message within its row of a table.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// The remedies for people.
const (
	doRestore     = "restore it from a backup or a replica; keep what is there until then"
	doForget      = "nothing: it is made anew"
	doSegment     = "restore the file from a backup; else `spillway partition drop`, or go on without: its partition answers with an error until then"
	doUnknown     = "look at it; a start puts it aside, nothing reads it"
	doDropped     = "nothing: the next start goes on with that"
	doStart       = "do what it says"
	doLook        = "nothing at once; the next start says it again"
	doWaitForOpen = "repair the files above as they say, then verify again"
)

// segments reads every segment to its last row: those that the catalogue names are compared with their entries, and unnamed ones are
// read too. named is nil if the catalogue could not be read: then every segment is checked against itself alone.
func (v *Verification) segments(ctx context.Context, named map[string]namedSegment) error {
	known := named != nil
	var paths []string
	v.mu.Lock()
	for name, f := range v.Files {
		if f.Kind == "segment" && strings.HasSuffix(name, ".seg") {
			paths = append(paths, v.path(name))
			v.total.Add(f.Bytes)
		}
	}
	v.mu.Unlock()
	for path := range named {
		if !slices.Contains(paths, path) {
			v.say(path, fileMissing, "the catalogue names it and it is not there", doSegment)
		}
	}
	slices.Sort(paths)
	reader := newSegmentVerifier()
	defer reader.close()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, path := range paths {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			want, ok := named[path]
			if v.dropped[filepath.Dir(path)] { // and perhaps cut off
				v.bytes.Add(v.file(path).Bytes)
				v.say(path, fileUnused, "its partition was dropped, and its removal has not ended", doDropped)
				return nil
			}
			err := reader.verify(path, want)
			v.bytes.Add(v.file(path).Bytes)
			switch {
			case err != nil:
				v.say(path, FileDamaged, err.Error(), doSegment)
			case known && !ok:
				v.say(path, fileUnused, "the catalogue does not name it; it is whole", doUnknown)
			}
			return nil
		})
	}
	return g.Wait()
}

// unlocked returns an error if another process has the store.
func (v *Verification) unlocked() error {
	for _, dir := range []string{v.dir, v.logDir} {
		if held(filepath.Join(dir, brick.LockFile)) {
			return fault.Errorf(fault.Unavailable, "%s is in use by a running process, which checks its own segments: see `scrub` in its /api/v1/status/cluster and spillway_server_scrub_… in its metrics; stop it to verify the whole store", dir)
		}
	}
	return nil
}

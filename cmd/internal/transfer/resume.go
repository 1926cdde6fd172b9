package transfer

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// ResumeSuffix ends the name of the file beside the target of an export, or the source of an import, that notes how far an
// unfinished run came.
const ResumeSuffix = ".resume"

// resume is such a file.
type resume struct {
	Version int    `json:"version"` // noteVersion, of a note that names a block noteOfBlock
	What    string `json:"what"`    // the run's own parameters: another run does not continue this one
	Next    int64  `json:"next"`    // of an export: milliseconds; of an import: see each source
	Within  string `json:"within,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"` // that are whole in the target; of blocks: their number
	Block   string `json:"block,omitempty"` // the last block, which is whole, and may not have its name yet
	Rows    int64  `json:"rows"`
	Lossy   bool   `json:"lossy,omitempty"` // something was left out

	// Of an import.
	Now  int64    `json:"now,omitempty"` // nanoseconds: the time of rows of a file that have none, in all runs the same
	Sum  string   `json:"sum,omitempty"` // of a file: XXH64 of its bytes before Next, unpacked, in hex; "": not known
	Done []string `json:"done,omitzero"` // blocks of Prometheus that are whole at the target; nil: those before Within
}

// nowhere reports whether a run ended before anything of it was acknowledged.
func (r *resume) nowhere() bool { return r.Next == 0 && r.Within == "" && r.Rows == 0 }

// pass moves the note behind a batch that was acknowledged, and all before it.
func (r *resume) pass(b *batch) {
	if isBlock(r.Within) && b.within != r.Within && r.Done != nil {
		r.Done = append(r.Done, r.Within)
	}
	r.Next, r.Within, r.Sum = b.next, b.within, b.sum
}

// Versions of a note. A program that knows no block in it would remove that block, go on behind its window, and lose the rows: it refuses the later version.
const (
	noteVersion = 1
	noteOfBlock = 2
)

// loadResume reads a run's file; nil if there is none. Errors are Invalid: the file is of another run.
func loadResume(path, what string) (*resume, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "the note of an unfinished run")
	}
	var r resume
	if err := json.Unmarshal(b, &r); err != nil || r.Version < noteVersion || r.Version > noteOfBlock {
		return nil, fault.Errorf(fault.Invalid, "%s is no note of an unfinished run; remove it to begin anew", path)
	}
	if r.What != what && r.nowhere() {
		return nil, nil // a run that wrote nothing, to a wrong address maybe, keeps no other from beginning
	}
	if r.What != what {
		return nil, fault.Errorf(fault.Invalid, "%s notes an unfinished run with other parameters (%s; now: %s); give the same, or remove it to begin anew", path, r.What, what)
	}
	return &r, nil
}

// save writes the file, whole or not at all.
func (r *resume) save(path string) error {
	r.Version = noteVersion
	if r.Block != "" {
		r.Version = noteOfBlock
	}
	b, err := json.Marshal(r)
	if err == nil {
		err = writeFile(path+".new", append(b, '\n'))
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	return fault.Wrap(err, fault.Unavailable, "the note of how far the run came")
}

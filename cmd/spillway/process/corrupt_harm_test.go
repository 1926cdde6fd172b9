package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// harm is one kind of damage to a store: to one file, or to one of its directories.
type harm struct {
	Kind string // of the file: catalogue/N.log, segments/N/N.seg, …
	File string
	How  string // with its place in the file
	Name string // how, without the place
}

func (h harm) String() string { return h.File + ": " + h.How }

var digits = regexp.MustCompile(`[0-9a-f]{16}|[0-9]+`)

// kindOf is the kind of a file or directory: its path without numbers.
func kindOf(name string) string { return digits.ReplaceAllString(name, "N") }

// dull are files that no row depends on, or that are empty: they get a small share.
var dull = regexp.MustCompile(`LOCK$|settings\.yaml$|OPTIONS-N$|marker\.format`)

// weighty are files that hold rows, or the positions of rows.
var weighty = regexp.MustCompile(`\.(seg|log|sst)$`)

// plot chooses a harm to the store in dir, and does it. old are earlier versions of the same store.
func plot(rng *rand.Rand, dir string, old []string) (harm, error) {
	names, err := corruptFiles(dir)
	if err != nil {
		return harm{}, err
	}
	if rng.IntN(20) == 0 {
		return harmDirectory(rng, dir, old)
	}
	byKind := map[string][]string{}
	for _, n := range names {
		byKind[kindOf(n)] = append(byKind[kindOf(n)], n)
	}
	var kinds []string
	for k := range byKind {
		share := 6
		switch {
		case dull.MatchString(k):
			share = 1
		case weighty.MatchString(k):
			share = 12
		}
		for range share {
			kinds = append(kinds, k)
		}
	}
	slices.Sort(kinds)
	kind := kinds[rng.IntN(len(kinds))]
	file := byKind[kind][rng.IntN(len(byKind[kind]))]
	h := harm{Kind: kind, File: file}
	h.Name, h.How, err = harmFile(rng, dir, file, byKind[kind], old)
	return h, err
}

// harmFile changes one file, in place as a disk would.
func harmFile(rng *rand.Rand, dir, file string, siblings, old []string) (name, how string, err error) {
	path := filepath.Join(dir, file)
	was, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	put := func(b []byte) error { return processtest.Overwrite(path, b) }
	b := bytes.Clone(was)
	at := 0
	if len(b) > 0 {
		at = rng.IntN(len(b))
	}
	n := rng.IntN(14)
	if len(b) == 0 {
		n = []int{7, 8, 10}[rng.IntN(3)]
	}
	switch {
	case n == 8 && strings.Contains(file, "marker."):
		if older := olderMarker(rng, file, old); older != "" {
			if err := os.Remove(path); err != nil {
				return "", "", err
			}
			return "old version", "renamed to " + older, os.WriteFile(filepath.Join(filepath.Dir(path), older), nil, 0o644)
		}
	case n <= 1 && len(b) > 0:
		bit := rng.IntN(8)
		b[at] ^= 1 << bit
		return "bit flipped", fmt.Sprintf("bit %d of byte %d of %d flipped", bit, at, len(b)), put(b)
	case n == 2 && len(b) > 0:
		b[at] ^= byte(1 + rng.IntN(255))
		return "byte changed", fmt.Sprintf("byte %d of %d changed", at, len(b)), put(b)
	case n == 3 && len(b) > 0:
		from := at &^ 4095
		to := min(from+4096, len(b))
		clear(b[from:to])
		return "page zeroed", fmt.Sprintf("bytes %d to %d of %d zeroed", from, to, len(b)), put(b)
	case n == 4 && len(b) > 0:
		to := at + 1 + rng.IntN(len(b)-at)
		clear(b[at:to])
		return "range zeroed", fmt.Sprintf("bytes %d to %d of %d zeroed", at, to, len(b)), put(b)
	case n == 5 && len(b) > 0:
		return "cut off", fmt.Sprintf("cut off at %d of %d", at, len(b)), put(b[:at])
	case n == 6 && len(b) > 0:
		block := []int{512, 4096, 32 << 10}[rng.IntN(3)]
		end := (len(b) - 1) / block * block
		return "cut off at a block", fmt.Sprintf("cut off at %d of %d", end, len(b)), put(b[:end])
	case n == 7:
		more := make([]byte, 1+rng.IntN(6000))
		what := "zeros"
		if rng.IntN(3) > 0 {
			what = "noise"
			for i := range more {
				more[i] = byte(rng.Uint32())
			}
		}
		return "appended to", fmt.Sprintf("%d bytes of %s appended to %d", len(more), what, len(b)), put(append(b, more...))
	case n == 8 || n == 9:
		if from, v, ok := older(rng, file, was, old); ok {
			return "old version", fmt.Sprintf("%d bytes of an old version, %s, instead of %d", len(v), from, len(b)), put(v)
		}
	case n == 10:
		return "deleted", fmt.Sprintf("deleted, with %d bytes", len(b)), os.Remove(path)
	case n == 11 || n == 12:
		if other := siblings[rng.IntN(len(siblings))]; other != file {
			theirs, err := os.ReadFile(filepath.Join(dir, other))
			if err != nil {
				return "", "", err
			}
			if n == 11 {
				return "another put in its place", "overwritten with " + other, put(theirs)
			}
			if err := put(theirs); err != nil {
				return "", "", err
			}
			return "two swapped", "swapped with " + other, processtest.Overwrite(filepath.Join(dir, other), was)
		}
	}
	return "emptied", fmt.Sprintf("emptied, of %d bytes", len(b)), put(nil)
}

// olderMarker returns the name that a marker, which consists of its name alone, had in an old version.
func olderMarker(rng *rand.Rand, file string, old []string) string {
	kind, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(file), "marker."), ".")
	for _, i := range rng.Perm(len(old)) {
		names, _ := filepath.Glob(filepath.Join(old[i], filepath.Dir(file), "marker."+kind+".*"))
		for _, n := range names {
			if filepath.Base(n) != filepath.Base(file) {
				return filepath.Base(n)
			}
		}
	}
	return ""
}

// older finds an earlier version of a file: under its name, else of its kind.
func older(rng *rand.Rand, file string, now []byte, old []string) (from string, b []byte, ok bool) {
	for _, i := range rng.Perm(len(old)) {
		if b, err := os.ReadFile(filepath.Join(old[i], file)); err == nil && !bytes.Equal(b, now) {
			return filepath.Base(old[i]) + "/" + file, b, true
		}
	}
	for _, i := range rng.Perm(len(old)) {
		names, err := corruptFiles(old[i])
		if err != nil {
			continue
		}
		names = slices.DeleteFunc(names, func(n string) bool { return kindOf(n) != kindOf(file) })
		for _, k := range rng.Perm(len(names)) {
			if b, err := os.ReadFile(filepath.Join(old[i], names[k])); err == nil && !bytes.Equal(b, now) {
				return filepath.Base(old[i]) + "/" + names[k], b, true
			}
		}
	}
	return "", nil, false
}

// harmDirectory deletes a directory, or replaces it by an old version.
func harmDirectory(rng *rand.Rand, dir string, old []string) (harm, error) {
	dirs := []string{"catalogue", "coord", "log", "segments"}
	placements, err := os.ReadDir(filepath.Join(dir, "segments"))
	if err != nil {
		return harm{}, err
	}
	dirs = append(dirs, "segments/"+placements[rng.IntN(len(placements))].Name())
	one := dirs[rng.IntN(len(dirs))]
	h := harm{Kind: kindOf(one) + "/", File: one, Name: "directory deleted", How: "deleted"}
	path := filepath.Join(dir, one)
	if err := os.RemoveAll(path); errors.Is(err, syscall.ENOTEMPTY) {
		h.How = "deleted, but for what the process wrote meanwhile"
		return h, nil
	} else if err != nil || rng.IntN(3) == 0 {
		return h, err
	}
	from := filepath.Join(old[rng.IntN(len(old))], one)
	if _, err := os.Stat(from); err != nil {
		return h, nil
	}
	h.Name, h.How = "old directory", "as in "+strings.TrimPrefix(from, filepath.Dir(filepath.Dir(from)))
	if err := os.CopyFS(path, os.DirFS(from)); !errors.Is(err, fs.ErrExist) { // the process may have written one meanwhile
		return h, err
	}
	return h, nil
}

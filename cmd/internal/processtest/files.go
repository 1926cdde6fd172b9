package processtest

import (
	"os"
	"path/filepath"
)

// Overwrite writes into the file itself, so that a process that has it open sees the change.
func Overwrite(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Truncate(int64(len(b)))
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// SegmentsIn counts the segment files of a process that was started in a directory.
func SegmentsIn(dir string) int {
	names, _ := filepath.Glob(filepath.Join(dir, "data", "segments", "*", "*.seg"))
	return len(names)
}

package brick

import (
	"bytes"
	"errors"
	"io"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// CheckCopies checks the files beside catalogue and log that detect damage to those two, the witness and the mirrors, and returns the
// errors by path. No row depends on them while catalogue and log are whole, and the next start rewrites them; but until then a
// damaged catalogue cannot be repaired. For a store without an identity it returns nothing.
func CheckCopies(fs vfs.FS, dataDir, logDir string) map[string]error {
	out := map[string]error{}
	ids, err := identify(fs, dataDir, logDir)
	if err != nil {
		return out
	}
	id := ids.log
	path := fs.PathJoin(dataDir, witnessFile)
	if err := checkWitness(fs, path, id); err != nil {
		out[path] = err
	}
	for _, kind := range []mirrorKind{catalogueMirror, metadataMirror} {
		path = fs.PathJoin(dataDir, kind.name)
		switch mark, _, _, clean, err := readMirror(fs, kind, path, id, nil); {
		case err != nil:
			out[path] = err
		case !clean:
			if _, err := fs.Stat(path); err == nil {
				out[path] = fault.Errorf(fault.Corrupt, "%s can be read up to %s, and not behind it", path, mark)
			}
		}
	}
	return out
}

// checkWitness demands that both slots are whole, or never written.
func checkWitness(fs vfs.FS, path string, id StoreID) error {
	f, err := fs.Open(path)
	if oserror.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "open %s", path)
	}
	defer f.Close()
	var newest uint64
	empty := false
	for slot := range int64(2) {
		b := make([]byte, witnessSlot)
		n, err := f.ReadAt(b, slot*witnessApart)
		if err != nil && !errors.Is(err, io.EOF) {
			return fault.Wrap(err, fault.Unavailable, "read %s", path)
		}
		if n == len(b) && bytes.Equal(b, make([]byte, witnessSlot)) {
			empty = true
			continue
		}
		writes, _, ok := parseTestimony(b[:n], id)
		if !ok {
			return fault.Errorf(fault.Corrupt, "%s: what lies at %d is not what was written", path, slot*witnessApart)
		}
		newest = max(newest, writes)
	}
	if empty && newest != 1 { // the first write leaves the other slot as it is
		return fault.Errorf(fault.Corrupt, "%s: one of two copies is gone", path)
	}
	return nil
}

package staging

import "github.com/spillwaydb/spillway/protocols/fault"

// EachRecord calls f with each record of a file of the log, up to the first that cannot be read, at byte at; of a whole file at is its length.
// A record is valid until f returns, and its Body shares b's memory. torn: the file ends within a record, or within its magic: a killed
// writer leaves that. Errors are Corrupt, and those of f.
func EachRecord(b []byte, f func(*Record) error) (at int, torn bool, err error) {
	if len(b) < len(FileMagic) {
		return 0, true, nil // it was being made
	}
	if string(b[:len(FileMagic)]) != FileMagic {
		return 0, false, fault.Errorf(fault.Corrupt, "it begins with %q, not with %q", b[:len(FileMagic)], FileMagic)
	}
	for rest := b[len(FileMagic):]; len(rest) > 0; {
		at = len(b) - len(rest)
		var r Record
		if r, rest, err = CutRecord(rest); err != nil {
			if Torn(b[at:]) {
				return at, true, nil
			}
			return at, false, fault.Wrap(err, fault.Corrupt, "at byte %d of %d", at, len(b))
		}
		if err := f(&r); err != nil {
			return at, false, fault.Annotate(err, "at byte %d of %d", at, len(b))
		}
	}
	return len(b), false, nil
}

package mapcache

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/protocols/fault"
)

const (
	magic      = "SPWCACHE"
	version    = 1
	headerLen  = 28
	fileMax    = 512 << 20
	kindTable  = 1
	kindRows   = 2
	suffix     = ".cache"
	suffixTemp = ".tmp"
)

// file is the content of a cache file.
type file struct {
	kind   uint32
	at     time.Time
	fields [][]byte
}

// encode gives the file's bytes, as FORMAT.md draws them.
func (f *file) encode() []byte {
	n := headerLen + 8
	for _, x := range f.fields {
		n += 4 + len(x)
	}
	b := append(make([]byte, 0, n), magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint32(b, f.kind)
	b = binary.LittleEndian.AppendUint64(b, uint64(f.at.UnixNano()))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.fields)))
	for _, x := range f.fields {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(x))), x...)
	}
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}

// decode reads the result of encode. Fields share b's memory. Errors are Corrupt.
func decode(b []byte) (*file, error) {
	if len(b) < headerLen+8 || string(b[:8]) != magic {
		return nil, fault.Errorf(fault.Corrupt, "not a cache file")
	}
	body, sum := b[:len(b)-8], binary.LittleEndian.Uint64(b[len(b)-8:])
	if xxhash.Sum64(body) != sum {
		return nil, fault.Errorf(fault.Corrupt, "a cache file's checksum does not match")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != version {
		return nil, fault.Errorf(fault.Corrupt, "a cache file of version %d; this build reads version %d", v, version)
	}
	f := &file{kind: binary.LittleEndian.Uint32(b[12:]), at: time.Unix(0, int64(binary.LittleEndian.Uint64(b[16:])))}
	n, rest := binary.LittleEndian.Uint32(b[24:]), body[headerLen:]
	for range n {
		if len(rest) < 4 || uint64(len(rest)-4) < uint64(binary.LittleEndian.Uint32(rest)) {
			return nil, fault.Errorf(fault.Corrupt, "a cache file ends within a field")
		}
		size := int(binary.LittleEndian.Uint32(rest))
		f.fields, rest = append(f.fields, rest[4:4+size:4+size]), rest[4+size:]
	}
	if len(rest) > 0 {
		return nil, fault.Errorf(fault.Corrupt, "a cache file goes on after its fields")
	}
	return f, nil
}

// asOf is when the content of a file was the newest. A clock that was set back since, or was wrong then, makes that a moment that has yet to come: the age is not known, and the
// content is old, but for what NTP moves a clock by while a process restarts. By a negative age it would count as proven until the clock comes there, and answers would lack rows without a word.
func (f *file) asOf(now time.Time) time.Time {
	switch ahead := f.at.Sub(now); {
	case ahead > time.Second:
		return time.Unix(0, 0)
	case ahead > 0:
		return now
	}
	return f.at
}

// named checks that a file has the name of its table or prefix. Else it is a copy of another file, whose rows would count twice.
func (f *file) named(name string) error {
	prefix := "t-"
	if f.kind == kindRows {
		prefix = "r-"
	}
	if len(f.fields) == 0 || name != fileName(prefix, string(f.fields[0])) {
		return fault.Errorf(fault.Corrupt, "a cache file of another name lies here")
	}
	return nil
}

// nameMax bounds the names of files: file systems allow 255 bytes.
const nameMax = 200

// fileName spells a name so that every file system accepts it.
func fileName(prefix, name string) string {
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	s := b.String()
	if len(s) > nameMax {
		s = fmt.Sprintf("%%%016x", xxhash.Sum64String(name))
	}
	return prefix + s + suffix
}

package kafka

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// fileLetters appends lines of JSON to a file, fsynced before send returns. A full file becomes <file>.1. Each line ends with a checksum of the
// bytes before it: a letter may be the last copy of a record, once Kafka deleted it.
type fileLetters struct {
	path string
	max  int64

	mu   sync.Mutex
	file *os.File
	size int64
	torn bool // the file ends within a line: the next letter begins another
}

// lineVersion is that of the lines written now. FORMAT.md draws them; lines without a version are of builds before it.
const lineVersion = 2

// fileLine is one letter. A field is text where it is UTF-8, else base64 in a field of another name; a null of Kafka has neither.
type fileLine struct {
	Version   int          `json:"version"`
	Time      time.Time    `json:"time"`
	Topic     string       `json:"topic"`
	Partition int32        `json:"partition"`
	Offset    int64        `json:"offset"`
	Kind      string       `json:"kind"`
	Reason    string       `json:"reason"`
	Rows      int          `json:"rows_refused"`
	Timestamp *time.Time   `json:"timestamp,omitempty"` // of the record: rows without a time have it
	Headers   []fileHeader `json:"headers,omitempty"`   // in the order of the record, also those that come twice
	Key       *[]byte      `json:"key_base64,omitempty"`
	Value     *string      `json:"value,omitempty"`
	Base64    []byte       `json:"value_base64,omitempty"`
}

// fileHeader is a header of the record.
type fileHeader struct {
	Key         *string `json:"key,omitempty"`
	KeyBase64   []byte  `json:"key_base64,omitempty"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"value_base64,omitempty"`
}

// oldLine is a line of a build before the version.
type oldLine struct {
	Time      time.Time         `json:"time"`
	Topic     string            `json:"topic"`
	Partition int32             `json:"partition"`
	Offset    int64             `json:"offset"`
	Kind      string            `json:"kind"`
	Reason    string            `json:"reason"`
	Rows      int               `json:"rows_refused"`
	Headers   map[string]string `json:"headers,omitempty"`
	Key       []byte            `json:"key_base64,omitempty"`
	Value     string            `json:"value,omitempty"`
	Base64    []byte            `json:"value_base64,omitempty"`
}

func openFileLetters(path string, max int64) (*fileLetters, error) {
	f := &fileLetters{path: path, max: max}
	return f, f.open()
}

func (f *fileLetters) open() error {
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "dead-letter file")
	}
	st, err := file.Stat()
	end := []byte{'\n'}
	if err == nil && st.Size() > 0 {
		_, err = file.ReadAt(end, st.Size()-1)
	}
	if err == nil {
		err = syncDir(filepath.Dir(f.path))
	}
	if err != nil {
		_ = file.Close()
		return fault.Wrap(err, fault.Unavailable, "dead-letter file")
	}
	f.file, f.size, f.torn = file, st.Size(), end[0] != '\n'
	return nil
}

// syncDir makes the names in a directory durable. Without it a power cut could remove a new file, and the letters in it, after their offsets were committed.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (f *fileLetters) send(_ context.Context, all []*letter) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range all {
		line, err := json.Marshal(l.line())
		if err != nil {
			return fault.Wrap(err, fault.Internal, "dead letter")
		}
		if err := f.writeLocked(appendSum(line)); err != nil {
			return fault.Wrap(err, fault.Unavailable, "dead-letter file")
		}
	}
	return fault.Wrap(f.file.Sync(), fault.Unavailable, "dead-letter file")
}

func (f *fileLetters) writeLocked(line []byte) error {
	if f.file == nil || f.size > 0 && f.size+int64(len(line)) > f.max {
		if err := f.turnLocked(); err != nil {
			return err
		}
	}
	if f.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := f.file.Write(line)
	f.size += int64(n)
	f.torn = f.torn && n == 0 || n > 0 && n < len(line)
	return err
}

// turnLocked puts the full file away and begins another.
func (f *fileLetters) turnLocked() error {
	if f.file != nil {
		if err := errors.Join(f.file.Sync(), f.file.Close()); err != nil {
			return err
		}
		f.file = nil
		if err := os.Rename(f.path, f.path+".1"); err != nil {
			return err
		}
	}
	return f.open()
}

func (f *fileLetters) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}

func (l *letter) line() fileLine {
	out := fileLine{Version: lineVersion, Time: time.Now().UTC(), Topic: l.topic, Partition: l.partition, Offset: l.offset, Kind: l.kind.String(), Reason: l.reason, Rows: l.rows}
	r := l.record
	if r == nil {
		return out
	}
	if !r.Timestamp.IsZero() {
		at := r.Timestamp.UTC()
		out.Timestamp = &at
	}
	if r.Key != nil {
		out.Key = &r.Key
	}
	for _, h := range r.Headers {
		var line fileHeader
		line.Key, line.KeyBase64 = text([]byte(h.Key))
		if h.Value != nil {
			line.Value, line.ValueBase64 = text(h.Value)
		}
		out.Headers = append(out.Headers, line)
	}
	if r.Value != nil {
		out.Value, out.Base64 = text(r.Value)
	}
	return out
}

// text gives bytes as text if JSON keeps them as they are, else as they are for base64.
func text(b []byte) (*string, []byte) {
	if !utf8.Valid(b) {
		return nil, b
	}
	s := string(b)
	return &s, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	sumKey  = `,"crc32c":"`
	sumsLen = len(sumKey) + 8 + len(`"}`)
)

// appendSum ends a line: the sum covers everything before its key.
func appendSum(line []byte) []byte {
	line = line[:len(line)-1] // the brace
	return fmt.Appendf(line, "%s%08x\"}\n", sumKey, crc32.Checksum(line, castagnoli))
}

// checkLine checks a line without its end. Builds before the sum wrote lines without one: they are JSON with no other keys than ours.
func checkLine(line []byte) error {
	if at := len(line) - sumsLen; at > 0 && bytes.HasPrefix(line[at:], []byte(sumKey)) {
		if want := fmt.Sprintf("%08x\"}", crc32.Checksum(line[:at], castagnoli)); want != string(line[at+len(sumKey):]) {
			return fault.Errorf(fault.Corrupt, "its checksum does not match")
		}
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	var l oldLine
	if err := d.Decode(&l); err != nil {
		return fault.Wrap(err, fault.Corrupt, "no letter")
	}
	if d.InputOffset() != int64(len(line)) {
		return fault.Errorf(fault.Corrupt, "something follows the letter")
	}
	return nil
}

// CheckLetters reads a file of dead letters, and counts the whole ones. Errors are Corrupt, with the place of the first line that is none, and Unavailable.
func CheckLetters(path string) (letters int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fault.Wrap(err, fault.Unavailable, "dead-letter file")
	}
	defer f.Close()
	r, at := bufio.NewReader(f), int64(0)
	var first error
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return letters, fault.Wrap(err, fault.Unavailable, "dead-letter file")
		}
		if len(line) == 0 {
			return letters, first
		}
		whole := bytes.TrimSuffix(line, []byte{'\n'})
		bad := checkLine(whole)
		if bad == nil && len(whole) == len(line) {
			bad = fault.Errorf(fault.Corrupt, "the file ends within it")
		}
		switch {
		case bad == nil:
			letters++
		case first == nil:
			first = fault.Annotate(bad, "line %d, at byte %d", n, at)
		}
		at += int64(len(line))
	}
}

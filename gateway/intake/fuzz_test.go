package intake

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

func FuzzStatements(f *testing.F) {
	f.Add(`CREATE DATABASE "a b\"c" WITH DURATION 7d; SHOW TAG KEYS ON x LIMIT 5`)
	f.Add(`'`)
	f.Add(`DELETE FROM cpu WHERE time < now() - 30d AND time>'2026-01-01'+1h30m AND host='a'`)
	f.Fuzz(func(t *testing.T, q string) {
		list, err := statements(q)
		if err != nil {
			return
		}
		n := 0
		for _, ts := range list {
			if len(ts) == 0 {
				t.Error("an empty statement")
			}
			for _, tok := range ts {
				n += len(tok.text)
			}
			_, _, _ = clauses(ts)
			_, _ = readDelete(ts[1:], &present{})
		}
		if n > len(q) {
			t.Errorf("%d bytes of tokens out of %d", n, len(q))
		}
	})
}

// FuzzUnpack: for any input, the unpacked body is within the bound and the charge is released.
func FuzzUnpack(f *testing.F) {
	var bufs buffers
	const bound = 1 << 16
	u, err := newUnpacker(&bufs, bound)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(u.close)
	f.Add(uint8(encGzip), []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add(uint8(encSnappy), []byte("\x05\x10hello"))
	f.Add(uint8(encZstd), []byte("\x28\xb5\x2f\xfd\x00\x58\x01\x00\x00"))
	f.Add(uint8(encDeflate), []byte("\x78\x9c\x03\x00\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, enc uint8, packed []byte) {
		of := budget{max: 1 << 30}
		c := charge{of: &of}
		body, err := u.unpack(encGzip+encoding(enc%4), buffer{b: packed}, &c)
		if err != nil {
			if k := fault.KindOf(err); k != fault.Invalid && k != fault.TooLarge {
				t.Errorf("kind %v: %v", k, err)
			}
		} else if len(body.b) > bound {
			t.Errorf("%d bytes, bound %d", len(body.b), bound)
		}
		bufs.free(&body)
		if of.used.Load() != 0 || c.held != 0 {
			t.Errorf("%d bytes are still charged", of.used.Load())
		}
	})
}

func FuzzFirstLine(f *testing.F) {
	f.Add([]byte("\r\nPOST /t/x/write?db=a HTTP/1.1\r\n"))
	f.Add([]byte("GET http://h/ping HTTP/1.1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		line, whole := firstLine(b)
		if whole && bytes.IndexByte(line, '\n') >= 0 {
			t.Errorf("line %q", line)
		}
		isIntake(line)
		if path, _ := splitTarget(string(line)); strings.Contains(path, "?") {
			t.Errorf("path %q", path)
		}
	})
}

func TestBufferClassesHoldWhatTheyPromise(t *testing.T) {
	for n := int64(1); n < 1<<28; n = n*3/2 + 1 {
		for _, n := range []int64{n - 1, n, n + 1} {
			k := class(n)
			if classBytes(k) < n || k > 0 && classBytes(k-1) >= n {
				t.Fatalf("%d bytes go to class %d of %d bytes", n, k, classBytes(k))
			}
		}
	}
	for k := range bufferClasses {
		if class(classBytes(k)) != k || class(classBytes(k)+1) != k+1 {
			t.Errorf("class %d is not exact", k)
		}
	}
}

package kafka

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/spillwaydb/spillway/protocols/fault"
)

func put(t *testing.T, path string, letters ...string) {
	t.Helper()
	f, err := openFileLetters(path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for i, value := range letters {
		l := &letter{topic: "metrics", partition: 1, offset: int64(i), record: &kgo.Record{Value: []byte(value)}, kind: fault.Invalid, reason: "no line"}
		if err := f.send(t.Context(), []*letter{l}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
}

// TestNoDeadLetterChangesInSilence flips each bit of a file and cuts it at each byte. A cut between two letters leaves a file that was like that once.
func TestNoDeadLetterChangesInSilence(t *testing.T) {
	path := filepath.Join(t.TempDir(), "letters.jsonl")
	put(t, path, "one \"line\"", "\xff\xfe", "")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(b []byte) (int, error) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return CheckLetters(path)
	}
	if n, err := check(whole); n != 3 || err != nil {
		t.Fatalf("%d letters, %v in\n%s", n, err, whole)
	}
	for bit := range 8 * len(whole) {
		bad := bytes.Clone(whole)
		bad[bit/8] ^= 1 << (bit % 8)
		if n, err := check(bad); !fault.Is(err, fault.Corrupt) || n < 1 {
			t.Errorf("bit %d of byte %d flipped: %d letters, %v", bit%8, bit/8, n, err)
		}
	}
	for at := 1; at < len(whole); at++ {
		if n, err := check(whole[:at]); (err == nil) != (whole[at-1] == '\n') || n != bytes.Count(whole[:at], []byte{'\n'}) {
			t.Errorf("cut at %d of %d: %d letters, %v", at, len(whole), n, err)
		}
	}
	old := []byte(`{"time":"2026-11-24T00:00:00Z","topic":"t","partition":0,"offset":7,"kind":"invalid","reason":"r","rows_refused":0,"value":"x"}` + "\n")
	if n, err := check(old); n != 1 || err != nil {
		t.Errorf("a line of a build without sums: %d, %v", n, err)
	}
}

// TestALetterKeepsTheRecordAsItCame: of headers that came twice the last one alone was kept, and bytes that are no UTF-8 were replaced.
func TestALetterKeepsTheRecordAsItCame(t *testing.T) {
	at := time.Date(2026, 11, 28, 12, 0, 0, 5_000_000, time.UTC)
	for want, r := range map[string]*kgo.Record{
		`"timestamp":"2026-11-28T12:00:00.005Z","headers":[{"key":"db","value":"a"},{"key":"trace","value_base64":"//4="},{"key":"db","value":"b"},{"key_base64":"/w==","value":""},{"key":""}],` +
			`"key_base64":"aw==","value":"m v=1"`: {Timestamp: at, Key: []byte("k"), Value: []byte("m v=1"), Headers: []kgo.RecordHeader{
			{Key: "db", Value: []byte("a")}, {Key: "trace", Value: []byte{0xff, 0xfe}}, {Key: "db", Value: []byte("b")}, {Key: "\xff", Value: []byte{}}, {Key: "", Value: nil}}},
		`"rows_refused":0,"key_base64":"","value_base64":"/w=="`: {Key: []byte{}, Value: []byte{0xff}},
		`"rows_refused":0,"value":""`:                            {Value: []byte{}},
		`"reason":"no line","rows_refused":0`:                    {},
	} {
		path := filepath.Join(t.TempDir(), "letters.jsonl")
		f, err := openFileLetters(path, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.send(t.Context(), []*letter{{topic: "metrics", record: r, kind: fault.Invalid, reason: "no line"}}); err != nil {
			t.Fatal(err)
		}
		if err := f.close(); err != nil {
			t.Fatal(err)
		}
		line, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := CheckLetters(path); n != 1 || err != nil || !strings.HasPrefix(string(line), `{"version":2,"time":"`) || !strings.Contains(string(line), want+sumKey) {
			t.Errorf("%d letters, %v: %swant\n%s", n, err, line, want)
		}
	}
}

// TestLettersOfOlderBuildsAreRead: without a sum, and with one.
func TestLettersOfOlderBuildsAreRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "letters.jsonl")
	old := `{"time":"2026-11-24T00:00:00Z","topic":"t","partition":0,"offset":7,"kind":"invalid","reason":"r","rows_refused":0,"headers":{"db":"a"},"value":"x"}`
	if err := os.WriteFile(path, append([]byte(old+"\n"), appendSum([]byte(old))...), 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, path, "new")
	if n, err := CheckLetters(path); n != 3 || err != nil {
		t.Errorf("%d letters, %v", n, err)
	}
}

// FuzzLetterLine: any line is read without a panic, and one that was given a sum is whole.
func FuzzLetterLine(f *testing.F) {
	f.Add([]byte(`{"time":"2026-11-24T00:00:00Z","topic":"t","partition":0,"offset":7,"kind":"invalid","reason":"r","rows_refused":0}`))
	f.Add(appendSum([]byte(`{"version":2}`)))
	f.Fuzz(func(t *testing.T, line []byte) {
		_ = checkLine(line)
		if len(line) < 2 {
			return
		}
		if summed := appendSum(bytes.Clone(line)); checkLine(summed[:len(summed)-1]) != nil {
			t.Errorf("%q is no letter", summed)
		}
	})
}

// TestALetterBehindATornOneIsWhole: the process was killed, or the disk was full, while a letter was written.
func TestALetterBehindATornOneIsWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "letters.jsonl")
	put(t, path, "first", "second")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(whole); at += 5 {
		if err := os.WriteFile(path, whole[:at], 0o600); err != nil {
			t.Fatal(err)
		}
		before, _ := CheckLetters(path)
		put(t, path, "after")
		if n, err := CheckLetters(path); n < before+1 || err != nil && !fault.Is(err, fault.Corrupt) {
			t.Errorf("cut at %d: %d letters, before %d, %v", at, n, before, err)
		}
	}
}

package brick

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// lastFence reads the metric.
func lastFence(t *testing.T, b *Brick) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	if err := newMetrics().register(reg, b); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "spillway_brick_last_fence_timestamp_seconds" {
			return f.Metric[0].Gauge.GetValue()
		}
	}
	t.Fatal("there is no such metric")
	return 0
}

// TestAFenceIsSeenAfterTheNextStart: the process ends within two seconds of a fence, and its metric with it, so that a scrape each 15 s hardly ever saw one.
func TestAFenceIsSeenAfterTheNextStart(t *testing.T) {
	f := &failing{kind: errorfs.OpFileSyncData, part: "/log/"}
	mem := vfs.NewMem()
	fs := errorfs.Wrap(mem, f)
	b, _ := open(t, fs, Settings{})
	if at, note := lastFence(t, b), b.LastFence(); at != 0 || note != (PastFence{}) {
		t.Errorf("a new store was fenced at %v: %v", at, note)
	}
	put(t, b, 1, seq(1), 100)
	began := time.Now()
	f.on.Store(true)
	w, err := b.Append(1, 1, seq(2), []byte("x"))
	if err == nil {
		err = w.Wait()
	}
	wantKind(t, err, fault.Unavailable, "fenced")
	wantKind(t, b.Close(), fault.Unavailable, "fenced")
	f.on.Store(false)
	for range 2 { // the second start shows it, too
		b, _ = open(t, fs, Settings{})
		at := lastFence(t, b)
		if at < float64(began.Unix()) || at > float64(time.Now().Unix()+1) {
			t.Errorf("the metric is %v, want from %d on", at, began.Unix())
		}
		if why := b.LastFence().Why; !strings.Contains(why, "injected") {
			t.Errorf("the reason is %q", why)
		}
		if b.Err() != nil {
			t.Error(b.Err())
		}
		mustClose(t, b)
	}
}

// TestANoteOfAFenceIsPutAwayByAge opens stores with notes of several ages, and with damaged ones.
func TestANoteOfAFenceIsPutAwayByAge(t *testing.T) {
	note := func(age time.Duration) string {
		f := PastFence{At: time.Now().Add(-age), Why: "EIO"}
		return f.text()
	}
	for name, c := range map[string]struct{ text, shown string }{
		"young":            {note(time.Hour), "EIO"},
		"of a clock ahead": {note(-time.Minute), "EIO"},
		"of another year":  {note(-9000 * time.Hour), ""},
		"old":              {note(25 * time.Hour), ""},
		"empty":            {"", "cannot be read: it is damaged"},
		"zeroes":           {string(make([]byte, 200)), "cannot be read: it is damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewMem()
			b, _ := open(t, mem, Settings{})
			path := mem.PathJoin(b.set.DataDir, NoteFile)
			mustClose(t, b)
			if err := writeNote(mem, path, c.text); err != nil {
				t.Fatal(err)
			}
			b, _ = open(t, mem, Settings{})
			defer mustClose(t, b)
			if why := b.LastFence().Why; !strings.Contains(why, c.shown) || (why == "") != (c.shown == "") {
				t.Errorf("it says %q, want %q", why, c.shown)
			}
			if _, err := mem.Stat(path); (err == nil) != (c.shown != "") {
				t.Errorf("the note: %v", err)
			}
		})
	}
}

// TestAFenceWithoutRoomForItsNote: neither the fence nor the end of the process waits for it.
func TestAFenceWithoutRoomForItsNote(t *testing.T) {
	f := &failing{kind: errorfs.OpCreate, part: NoteFile}
	f.on.Store(true)
	mem := vfs.NewMem()
	b, _ := open(t, errorfs.Wrap(mem, f), Settings{})
	b.Fence(errorfs.ErrInjected)
	wantKind(t, b.Close(), fault.Unavailable, "fenced")
	if f.hits.Load() != 1 {
		t.Errorf("%d tries", f.hits.Load())
	}
	b, _ = open(t, mem, Settings{})
	if note := b.LastFence(); note != (PastFence{}) {
		t.Error(note)
	}
	mustClose(t, b)
}

const goldenNote = "testdata/fenced.txt"

func TestGoldenNoteOfAFence(t *testing.T) {
	f := PastFence{At: time.Date(2026, 12, 1, 9, 20, 0, 123456789, time.UTC), Why: "the store in /data is fenced: sync \"1.log\":\ninput/output error"}
	text := f.text()
	if *update {
		if err := os.WriteFile(goldenNote, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(goldenNote)
	if err != nil || text != string(want) {
		t.Errorf("it is\n%s\nwant\n%s%v", text, want, err)
	}
	if got, err := parseNote(text); err != nil || got != f {
		t.Errorf("it is read as %v: %v", got, err)
	}
	for i := range text {
		if _, err := parseNote(text[:i]); err == nil {
			t.Errorf("cut to %d bytes it is read", i)
		}
		flipped := bytes.Clone([]byte(text))
		flipped[i] ^= 4
		if _, err := parseNote(string(flipped)); err == nil {
			t.Errorf("with byte %d flipped it is read", i)
		}
	}
	newer := strings.Replace(text[:strings.LastIndex(text, "sum ")], "fence 1", "fence 2", 1)
	if _, err := parseNote(newer + noteSum(newer)); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("of a newer version: %v", err)
	}
	long := PastFence{At: f.At, Why: strings.Repeat("é", 4*reasonMax)}
	if got, err := parseNote(long.text()); err != nil || len(got.Why) > reasonMax+8 || len(long.text()) > noteMax {
		t.Errorf("a long reason: %d bytes, %v", len(got.Why), err)
	}
}

func FuzzNoteOfAFence(f *testing.F) {
	whole := (&PastFence{At: time.Unix(1, 0), Why: "EIO"}).text()
	for _, text := range []string{whole, whole[:20], "", noteFirst + noteSum(noteFirst)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range []string{text, text + noteSum(text), noteFirst + text + noteSum(noteFirst+text)} {
			p, err := parseNote(s)
			if err != nil || len(p.Why) > reasonMax || p.At.UTC().Year() > 9999 {
				continue
			}
			if again, err := parseNote(p.text()); err != nil || !again.At.Equal(p.At) {
				t.Fatalf("%q is read as %v, then as %v: %v", s, p, again, err)
			}
		}
	})
}

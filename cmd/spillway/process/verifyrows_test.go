package process

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/verify"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
)

// stagedFile is a file of the log of staged rows with two frames of a row each.
func stagedFile() []byte {
	b := []byte(staging.FileMagic)
	for i := range 2 {
		f := staging.Frame{ID: staging.ID{Stamp: point.Stamp(1+i) << 10, Nonce: 7}, Table: "default", Since: time.Unix(1_700_000_000, 0), MapSeq: 1, Holders: []topology.ServerID{"a", "b"}}
		b = staging.AppendFrame(b, &f, frameOf(f.ID.Stamp))
	}
	return b
}

func frameOf(rank point.Stamp) []byte {
	var enc frame.Encoder
	return enc.Append(nil, &frame.Frame{Kind: frame.Rows, Foreign: true, Stamp: rank, Defs: []point.Labels{point.MakeLabels("__name__", "up")},
		IDs: []point.DenseID{0}, Times: []point.Nanos{1}, Values: []float64{2}})
}

// surplusFile is written as storage/partition/FORMAT.md draws it.
func surplusFile(partition, placement uint64) []byte {
	b := append([]byte("spillway surplus 1\n"), 7, 0, 0, 0)
	b = append(b, "default"...)
	for _, n := range []uint64{partition, placement, 3, 4} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	for rank := range 3 {
		f := frameOf(point.Stamp(rank+1) << 10)
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(f))), f...)
	}
	b = binary.LittleEndian.AppendUint32(b, 0)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// TestVerifyReadsRowsOutsideOfTheLog puts each kind of file that holds rows elsewhere, or none, into a store of a real process, whole and damaged: rows are counted, damage has
// file, place and remedy, and no remedy removes a file that may hold acked rows.
func TestVerifyReadsRowsOutsideOfTheLog(t *testing.T) {
	p := processtest.New(t, "SPILLWAY_STORAGE_FLUSH_AGE=100ms", "SPILLWAY_STORAGE_FLUSH_IDLE=100ms", "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	p.Start()
	status, text, err := p.Do(http.MethodPost, "/write?precision=s&db=default", nil, []byte("cpu usage=1 1700000000\n"))
	if err != nil || status != http.StatusNoContent {
		t.Fatal(status, string(text), err)
	}
	data := filepath.Join(p.Dir, "data")
	var segments []string
	for end := time.Now().Add(time.Minute); len(segments) == 0 && time.Now().Before(end); {
		segments, _ = filepath.Glob(filepath.Join(data, "segments", "*", "*.seg"))
	}
	if code := p.Stop(); code != 0 || len(segments) == 0 {
		t.Fatalf("exit code %d, segments %v", code, segments)
	}
	dir, err := filepath.Rel(data, filepath.Dir(segments[0]))
	if err != nil {
		t.Fatal(err)
	}
	var placement uint64
	if _, err := fmt.Sscanf(filepath.Base(dir), "%x", &placement); err != nil {
		t.Fatal(err)
	}
	staged, surplus := stagedFile(), surplusFile(1, placement)
	letter := []byte(`{"time":"2026-11-24T00:00:00Z","topic":"t","partition":0,"offset":7,"kind":"invalid","reason":"r","rows_refused":0}` + "\n")
	flipped := func(b []byte) []byte {
		b = bytes.Clone(b)
		b[len(b)/2] ^= 4
		return b
	}
	for _, c := range []struct {
		name, file string
		put        []byte
		kind       string
		state      string
		what, do   string // parts
	}{
		{"staged rows", "staging/0000000000000003.staged", staged, verify.KindStaged, "ok", "2 rows in 2 frames wait", ""},
		{"a bit of staged rows", "staging/0000000000000003.staged", flipped(staged), verify.KindStaged, "damaged", "at byte", "start the server"},
		{"the end of staged rows", "staging/0000000000000003.staged", staged[:len(staged)-1], verify.KindStaged, "suspect", "ends within the record at byte", "start the server"},
		{"a damaged log that was kept", "staging/0000000000000003.damaged", flipped(staged), verify.KindStaged, "unused", "that a start kept", "no row is missed"},
		{"refused rows", "staging/0000000000000400-0000000000000007.aside", staged, verify.KindStaged, "suspect", "2 rows in 2 frames that their leader refused", "nowhere else"},
		{"a bit of refused rows", "staging/0000000000000400-0000000000000007.aside", flipped(staged), verify.KindStaged, "damaged", "at byte", "restore"},
		{"surplus rows", dir + "/3-4.surplus", surplus, verify.KindSurplus, "ok", "3 rows in 3 frames", ""},
		{"a bit of surplus rows", dir + "/3-4.surplus", flipped(surplus), verify.KindSurplus, "damaged", "checksum", "keep it"},
		{"the end of surplus rows", dir + "/3-4.1.surplus", surplus[:len(surplus)-1], verify.KindSurplus, "damaged", "checksum", "keep it"},
		{"surplus rows of another placement", dir + "/3-5.surplus", surplus, verify.KindSurplus, "damaged", "wrong name", "keep it"},
		{"surplus rows of another partition", dir + "/3-4.surplus", surplusFile(2, placement), verify.KindSurplus, "damaged", "a start refuses them", "its own partition"},
		{"dead letters", "kafka-dead-letters.jsonl", letter, verify.KindLetters, "ok", "1 records", ""},
		{"a bit of dead letters", "kafka-dead-letters-a.jsonl.1", flipped(letter), verify.KindLetters, "suspect", "line 1, at byte 0", "look at it"},
		{"a cached map that was not finished", "cluster/123.tmp", letter, "map cache", "unused", "not finished", "nothing"},
		{"a restore that did not end", "RESTORING", nil, "restore", "damaged", "has not ended", "spillway restore"},
		{"settings that were not finished", "settings.yaml.new", nil, "settings", "unused", "not finished", "nothing"},
		{"something else", "notes.txt", letter, verify.KindOther, "ok", "no process of Spillway", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(data, c.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, c.put, 0o600); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(path)
			text, said, code := verified(t, p, "-o", "json", "--all")
			var report struct {
				Findings []verify.File
				Staged   int `json:"staged_rows"`
				Surplus  int `json:"surplus_rows"`
			}
			if err := json.Unmarshal([]byte(text), &report); err != nil {
				t.Fatalf("%v: %s%s", err, text, said)
			}
			if want := map[string]int{"ok": 0, "unused": 1, "suspect": 1, "damaged": 2}[c.state]; code != want {
				t.Errorf("exit code %d, want %d\n%s", code, want, text)
			}
			found := false
			for _, f := range report.Findings {
				if f.File == c.file {
					found = f.Kind == c.kind && f.State == c.state && strings.Contains(f.What, c.what) && strings.Contains(f.Do, c.do) && (f.Do == "") == (f.State == "ok")
					t.Logf("%+v", f)
				}
			}
			if !found {
				t.Errorf("%s is not reported as it should be", c.file)
			}
			if c.name == "staged rows" && report.Staged != 2 || c.name == "surplus rows" && report.Surplus != 3 {
				t.Errorf("%d rows staged, %d set aside", report.Staged, report.Surplus)
			}
		})
	}
}

// TestVerifyLooksAtAGateway: a directory with nothing but cached maps is no store, and nothing is missed in it.
func TestVerifyLooksAtAGateway(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cluster", "t-metrics.cache") // the golden file is of that table
	golden, err := os.ReadFile("../../../gateway/mapcache/testdata/table.cache")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for n := len(golden); n > 0; n -= 7 {
		if err := os.WriteFile(path, golden[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		v, err := verify.Examine(t.Context(), Rehearsal{}, dir)
		if err != nil {
			t.Fatal(err)
		}
		want := verify.FileOK
		if n < len(golden) {
			want = verify.FileSuspect
		}
		if got := v.Worst(""); got != want {
			t.Errorf("cut to %d of %d bytes: %s", n, len(golden), got)
		}
	}
}

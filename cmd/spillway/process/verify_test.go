package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/verify"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
)

// verified runs the command and returns its output, its messages and its exit code.
func verified(t *testing.T, p *processtest.Process, args ...string) (out, said string, code int) {
	t.Helper()
	cmd := exec.Command(p.Bin, append([]string{"verify", "--data-dir=" + filepath.Join(p.Dir, "data")}, args...)...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// moveBehindLink moves a directory, and leaves a link to it.
func moveBehindLink(dir, to string) error {
	return errors.Join(os.Rename(dir, to), os.Symlink(to, dir))
}

// dropHalf leaves a store as a process that is stopped while it removes the files of a dropped partition.
func dropHalf(data, segment string) (err error) {
	placement, err := strconv.ParseUint(filepath.Base(filepath.Dir(segment)), 16, 64)
	if err != nil {
		return err
	}
	id := point.PlacementID(placement)
	b, err := brick.Open(brick.Deps{FS: vfs.Default, Log: slog.New(slog.DiscardHandler)}, brick.Settings{DataDir: data, LogDir: filepath.Join(data, "log"), FreeBytesMin: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := b.Recover(func(point.PlacementID) point.Serial { return point.Serial{} }, func(point.PlacementID, point.Serial, []byte) error { return nil }); err != nil {
		return err
	}
	batch := b.NewBatch()
	batch.Delete([]byte(partition.EntryKey(id)))
	batch.Set(partition.DropKey(id), nil)
	if err := batch.Commit(true); err != nil {
		return err
	}
	st, err := os.Stat(segment)
	if err != nil {
		return err
	}
	return os.Truncate(segment, st.Size()/2)
}

// TestVerifyReportsEachFault runs the command on a store of a real process: whole, in use, and with one fault at a time.
// It names each fault's file and remedy, in words and in JSON, reports it in the exit code, and changes no byte.
func TestVerifyReportsEachFault(t *testing.T) {
	p := processtest.New(t, "SPILLWAY_STORAGE_FLUSH_AGE=100ms", "SPILLWAY_STORAGE_FLUSH_IDLE=100ms", "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	p.Start()
	for i := range 3 {
		status, text, err := p.Do(http.MethodPost, "/write?precision=s&db=default", nil, fmt.Appendf(nil, "cpu,host=a usage=%d %d\n", i, 1_700_000_000+86400*i))
		if err != nil || status != http.StatusNoContent {
			t.Fatal(status, string(text), err)
		}
	}
	data := filepath.Join(p.Dir, "data")
	var segments []string
	for len(segments) < 3 {
		segments, _ = filepath.Glob(filepath.Join(data, "segments", "*", "*.seg"))
	}
	if _, said, code := verified(t, p); code != 3 || !strings.Contains(said, "in use by a running process") {
		t.Errorf("under a running process: exit code %d, %s", code, said)
	}
	if code := p.Stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	logs, _ := filepath.Glob(filepath.Join(data, "log", "*.log"))
	flip := func(path string) func() error {
		return func() error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b[len(b)/2] ^= 4
			return os.WriteFile(path, b, 0o600)
		}
	}
	for _, c := range []struct {
		name, file string
		harm       func() error
		code       int
		state      string
	}{
		{"whole", "", func() error { return nil }, 0, ""},
		{"whole, behind a link", "", func() error { return moveBehindLink(data, p.Dir+"/moved") }, 0, ""},
		{"its segments behind a link", "", func() error { return moveBehindLink(filepath.Join(data, "segments"), t.TempDir()+"/moved") }, 0, ""},
		{"a bit of a segment", segments[0], flip(segments[0]), 2, "damaged"},
		{"a segment gone", segments[1], func() error { return os.Remove(segments[1]) }, 2, "missing"},
		{"the log gone", logs[0], func() error { return os.Remove(logs[0]) }, 2, ""},
		{"a bit of the settings", filepath.Join(data, "settings.yaml"), func() error { return os.WriteFile(filepath.Join(data, "settings.yaml"), []byte(": :"), 0o600) }, 1, "suspect"},
		{"a segment that was not finished", segments[0] + ".tmp", func() error { return os.WriteFile(segments[0]+".tmp", nil, 0o600) }, 1, "unused"},
		{"a dropped partition of which a file is half removed", segments[2], func() error { return dropHalf(data, segments[2]) }, 1, "unused"},
		{"no identity", filepath.Join(data, "STORE"), func() error { return os.Remove(filepath.Join(data, "STORE")) }, 2, ""},
		{"no store", "", func() error { return os.RemoveAll(data) }, 4, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole := filepath.Join(t.TempDir(), "whole")
			copyCorrupt(t, data, whole)
			t.Cleanup(func() {
				if err := errors.Join(os.RemoveAll(data), os.CopyFS(data, os.DirFS(whole))); err != nil {
					t.Fatal(err)
				}
			})
			if err := c.harm(); err != nil {
				t.Fatal(err)
			}
			before := (&corruptTrial{dir: data}).sums()
			out, said, code := verified(t, p)
			if code != c.code || c.state != "" && !strings.Contains(out, c.state) {
				t.Errorf("exit code %d, want %d\n%s%s", code, c.code, out, said)
			}
			if !slices.Equal(before, (&corruptTrial{dir: data}).sums()) {
				t.Error("the store changed")
			}
			if c.code == 4 {
				return
			}
			var report struct{ Findings []verify.File }
			text, _, _ := verified(t, p, "-o", "json")
			if err := json.Unmarshal([]byte(text), &report); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			if (len(report.Findings) > 0) != (c.code > 0) {
				t.Errorf("findings %+v", report.Findings)
			}
			for _, f := range report.Findings {
				if f.What == "" || f.Do == "" {
					t.Errorf("%+v does not say what to do", f)
				}
			}
			if c.state != "" && !slices.ContainsFunc(report.Findings, func(f verify.File) bool {
				return filepath.Join(data, f.File) == c.file && f.State == c.state
			}) {
				t.Errorf("%+v, want %s %s", report.Findings, c.file, c.state)
			}
		})
	}
}

package main

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/process"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
)

// Command lines mean the same as to kong's own Parse: parse is its steps without the hooks, which no command has.
func TestCommandLinesAreReadAsKongReadsThem(t *testing.T) {
	processtest.NoSettings(t)
	type result struct {
		out, command, err string
		code              int
		exited            bool
	}
	read := func(line string, by func(*kong.Kong, []string) (*kong.Context, error)) (r result, c cli) {
		c = newCLI()
		var out strings.Builder
		help := kong.ConfigureHelp(kong.HelpOptions{Compact: true})
		type exit struct{}
		k, err := kong.New(&c, kong.Name("spillway"), kong.Writers(&out, &out), help, kong.Exit(func(int) { panic(exit{}) }))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			r.out = out.String()
			if v := recover(); v != nil {
				if v != any(exit{}) {
					panic(v)
				}
				r.exited = true
			}
		}()
		ctx, err := by(k, strings.Fields(line))
		var coder interface{ ExitCode() int }
		switch {
		case errors.As(err, &coder):
			r.err, r.code = err.Error(), coder.ExitCode()
		case err != nil:
			r.err, r.code = err.Error(), 1
		case ctx == nil:
			r.exited = true // help
		default:
			r.command = ctx.Command()
		}
		return r, c
	}
	for _, line := range []string{
		"", "--help", "-h", "version", "version --help", "versoin", "table", "table --help", "table list -o json", "table list -o xml",
		"standalone", "standalone --help", "standalone --no-create-on-write --storage.minors-max=5", "standalone --retention", "standalone --bad",
		"gateway --coord=etcd://a:1", "storage --id s1", "query", "query up --table a", "query up extra", "import", "import --format=jsonl x", "import --format=nix x",
		"table set a --retention=1d", "table drop a --confirm a", "partition split t p1 --help", "completion bash", "completion tcsh", "export --from=yesterday",
	} {
		want, wantCLI := read(line, func(k *kong.Kong, args []string) (*kong.Context, error) { return k.Parse(args) })
		got, gotCLI := read(line, func(k *kong.Kong, args []string) (*kong.Context, error) {
			return parse(k, kong.HelpOptions{Compact: true}, args)
		})
		if got != want {
			t.Errorf("%q:\n%+v, and kong says\n%+v", line, got, want)
		}
		if got.err == "" && !got.exited && fmt.Sprintf("%+v", stripPointers(gotCLI)) != fmt.Sprintf("%+v", stripPointers(wantCLI)) {
			t.Errorf("%q sets other fields than kong does", line)
		}
	}
}

func TestVersionIsAFlagToo(t *testing.T) {
	for line, want := range map[string]string{"--version": "version", "version": "version", "query --version": "query --version"} {
		if got := strings.Join(withVersion(strings.Fields(line)), " "); got != want {
			t.Errorf("%q is taken for %q", line, got)
		}
	}
}

// stripPointers leaves the commands that hold no pointers, which print as addresses.
func stripPointers(c cli) any {
	c.Standalone, c.Gateway, c.Storage = process.Standalone{}, process.Gateway{}, process.Storage{}
	return c
}

// TestEveryCommandCanBeRun finds commands without a Run method: a command line that selects one would fail at run time.
func TestEveryCommandCanBeRun(t *testing.T) {
	c := newCLI()
	k, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	leaves := 0
	for _, n := range k.Model.Leaves(false) {
		leaves++
		switch n.Target.Addr().Interface().(type) {
		case interface{ Run() error }, interface{ Run(*kong.Context) error }:
		default:
			t.Errorf("%s is a %s, which has no Run", n.FullPath(), reflect.TypeOf(n.Target.Interface()))
		}
	}
	if leaves < 40 {
		t.Errorf("only %d commands were found", leaves)
	}
}

// TestCommandsAssumeTheDefaultsOfProcesses: a command that is given neither an address nor a directory finds the process that was given none, and plans with the sizes that
// storage servers plan with.
func TestCommandsAssumeTheDefaultsOfProcesses(t *testing.T) {
	d := settings.Default()
	wants := map[string][]string{
		"url":         {"http://" + d.HTTP.Listen, "http://" + d.Admin.Listen},
		"data-dir":    {d.DataDir},
		"split-bytes": {d.Tables.SplitBytes.String()},
		"target":      {d.Tables.SplitBytes.String()},
		"ahead":       {d.Tables.PresplitAhead.String()},
		"width":       {d.Tables.PartitionWidth.String()},
	}
	c := newCLI()
	k, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, n := range k.Model.Leaves(false) {
		for _, f := range n.Flags {
			want, ok := wants[f.Name]
			if !ok || f.Default == "" {
				continue
			}
			if seen[f.Name]++; !slices.Contains(want, f.Default) {
				t.Errorf("%s --%s is %s by default, and that of processes %s", n.Path(), f.Name, f.Default, strings.Join(want, " or "))
			}
		}
	}
	for name := range wants {
		if seen[name] == 0 {
			t.Errorf("no command has --%s", name)
		}
	}
}

package settings

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/spillwaydb/spillway/cmd/spillway/connect"
	"github.com/spillwaydb/spillway/gateway/admit"
	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/setting"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
)

var updateReference = flag.Bool("update-reference", false, "write docs/configuration.md anew")

// TestCommandsReadTheVariablesOfProcesses: a field that is a flag of commands too names its variable, which is that of the setting.
func TestCommandsReadTheVariablesOfProcesses(t *testing.T) {
	c, variables := Default(), map[string]bool{}
	for _, s := range setting.List(&c) {
		variables[s.Variable()] = true
	}
	seen := 0
	for _, v := range []any{connect.Coord{}, connect.Peer{}} {
		for f := range reflect.TypeOf(v).NumField() {
			tag := reflect.TypeOf(v).Field(f).Tag
			if tag.Get("name") == "" {
				continue
			}
			if seen++; !variables[tag.Get("env")] {
				t.Errorf("--%s: no setting has the variable %q", tag.Get("name"), tag.Get("env"))
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d flags seen", seen)
	}
}

// TestTheReferenceOfSettingsIsCurrent: docs/configuration.md equals the output of `spillway config reference`.
func TestTheReferenceOfSettingsIsCurrent(t *testing.T) {
	var b bytes.Buffer
	if err := writeReference(&b); err != nil {
		t.Fatal(err)
	}
	const file = "../../../docs/configuration.md"
	if *updateReference {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	has, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(has, b.Bytes()) {
		t.Error("docs/configuration.md is not what the settings say: spillway config reference > docs/configuration.md")
	}
}

// Every setting has a description, its default lies within its bounds, and no two share a flag or a variable.
func TestEverySettingIsDeclaredWhole(t *testing.T) {
	c := Default()
	if err := setting.Check(&c); err != nil {
		t.Error(err)
	}
	flags, variables := map[string]string{}, map[string]string{}
	for _, s := range setting.List(&c) {
		for _, s := range append([]setting.Setting{s}, s.Blocks()...) {
			if s.Help == "" || !strings.HasSuffix(s.Help, ".") {
				t.Errorf("%s: help %q is no sentence", s.Key, s.Help)
			}
			if flags[s.Flag] != "" && !strings.Contains(s.Key, "[]") {
				t.Errorf("%s and %s have the flag --%s", s.Key, flags[s.Flag], s.Flag)
			}
			if variables[s.Variable()] != "" {
				t.Errorf("%s and %s have the variable %s", s.Key, variables[s.Variable()], s.Variable())
			}
			flags[s.Flag], variables[s.Variable()] = s.Key, s.Key
		}
	}
}

// Flags win over variables, and these over the file; each of the 100 settings has all three.
func TestFlagsWinOverVariablesAndTheseOverTheFile(t *testing.T) {
	noSettings(t)
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	if err := os.WriteFile(file, []byte("storage: {flush_age: 10m, flush_idle: 20m, minors_max: 3}\nquery: {lookback: 1d}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SPILLWAY_STORAGE_FLUSH_IDLE", "21m")
	t.Setenv("SPILLWAY_STORAGE_MINORS_MAX", "4")
	f := NewFlags(Standalone, api.Build{})
	parser, err := kong.New(&f, kong.Exit(func(int) { t.Fatal("it ended") }))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"--config.file=" + file, "--storage.minors-max=5", "--admin.hosts=a,b", "--no-create-on-write", "--admin.listen="}); err != nil {
		t.Fatal(err)
	}
	cfg, err := f.Config()
	if err != nil {
		t.Fatal(err)
	}
	if s := cfg.Storage; s.FlushAge.String() != "10m" || s.FlushIdle.String() != "21m" || s.MinorsMax != 5 || cfg.Query.Lookback.String() != "1d" {
		t.Errorf("%+v %v", s, cfg.Query.Lookback)
	}
	if len(cfg.Admin.Hosts) != 2 || cfg.Tables.CreateOnWrite || cfg.Admin.Listen != "" {
		t.Errorf("%+v %+v", cfg.Admin, cfg.Tables)
	}
}

// A mistake names the flag, the variable and the key, from whichever source; and every mistake of a file is named.
func TestMistakesInSettingsNameThem(t *testing.T) {
	noSettings(t)
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	for text, wants := range map[string][]string{
		"storage: {flush_age: soon}\nquery: {lookback: 1x}": {"line 1", "line 2"},
		"storage: {flush_bytes: -1}":                        {`"-1" is no size`},
		"storage: {minors_max: -1}\nlog_level: loud":        {"storage.minors_max is -1, and must be 1 at least", `log_level "loud"`},
		"storage: {flush_agee: 1s}":                         {"flush_agee"},
		"limits: {defaults: {weight: 1001}}":                {"limits.defaults.weight is 1001"},
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := (&configSource{File: file}).config()
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", text, err)
			continue
		}
		for _, want := range wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v lacks %q", text, err, want)
			}
		}
	}
	f := NewFlags(Storage, api.Build{})
	parser, err := kong.New(&f)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"--storage.flush-bytes=x"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Config(); err == nil || !regexp.MustCompile(`--storage\.flush-bytes \(SPILLWAY_STORAGE_FLUSH_BYTES, storage\.flush_bytes\): "x" is no size`).MatchString(err.Error()) {
		t.Error(err)
	}
}

// noSettings removes the settings from the test's environment, the sizes of tests among them.
func noSettings(t *testing.T) {
	for _, e := range os.Environ() {
		if name, value, _ := strings.Cut(e, "="); strings.HasPrefix(name, setting.EnvironPrefix) {
			t.Setenv(name, value) // puts it back at the end
			os.Unsetenv(name)
		}
	}
}

// TestTheDefaultsOfUsersAreThoseOfThePackages: a setting that lies in Config, and not in the Settings of its package, has a default in both. They are the
// same, so that tests of the package run what users run.
func TestTheDefaultsOfUsersAreThoseOfThePackages(t *testing.T) {
	c := Default()
	var rows, ownRows partition.Settings
	rows.SetDefaults()
	ownRows = c.ForServer().Partition
	ownRows.SetDefaults()
	ownRows.CompactBytes = rows.CompactBytes // of the machine's memory
	if ownRows != rows {
		t.Errorf("storage/partition: %+v, users have %+v", rows, ownRows)
	}
	var plans, ownPlans master.Settings
	plans.SetDefaults()
	ownPlans = c.ForMaster()
	ownPlans.SetDefaults()
	if ownPlans != plans {
		t.Errorf("metadata/master: %+v, users have %+v", plans, ownPlans)
	}
	var admitted admit.Settings
	admitted.SetDefaults()
	if own := c.ForIntake().Admit; own.FutureMax != admitted.FutureMax || own.RowsMax != admitted.RowsMax {
		t.Errorf("gateway/admit: %+v, users have %+v", admitted, own)
	}
	if own := c.ForBrick().LostFoundKeep; own != brick.LostFoundKeepDefault {
		t.Errorf("storage/brick: %s, users have %s", brick.LostFoundKeepDefault, own)
	}
}

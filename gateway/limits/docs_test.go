package limits_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/spillwaydb/spillway/gateway/limits"
)

// TestTheReferenceForUsersIsComplete reads the YAML that docs/limits.md shows: it has every key, with its default.
func TestTheReferenceForUsersIsComplete(t *testing.T) {
	text, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	block, _, _ := strings.Cut(rest, "```")
	var shown struct{ Limits yaml.Node }
	if err := yaml.Unmarshal([]byte(block), &shown); err != nil {
		t.Fatal(err)
	}
	again, err := yaml.Marshal(&shown.Limits)
	if err != nil {
		t.Fatal(err)
	}
	s := mustRead(t, string(again))
	var defaults limits.Settings
	defaults.SetDefaults()
	keys := reflect.ValueOf(s.Defaults)
	for i := range keys.NumField() {
		if keys.Field(i).IsNil() {
			t.Errorf("%s is not shown", keys.Type().Field(i).Tag.Get("yaml"))
		}
	}
	if got, want := registryOf(t, s).Table("x").Values(), registryOf(t, limits.Settings{}).Table("x").Values(); got != want {
		t.Errorf("shown %+v\nare   %+v", got, want)
	}
	s.Defaults, defaults.Defaults, s.Tables = limits.Set{}, limits.Set{}, nil
	if !reflect.DeepEqual(s, defaults) {
		t.Errorf("shown %+v\nare   %+v", s, defaults)
	}
	for _, l := range limits.Names() {
		if l != "labels" && !strings.Contains(string(text), "`"+l+"`") {
			t.Errorf("nothing is said of what %s answers", l)
		}
	}
}

func registryOf(t testing.TB, s limits.Settings) *limits.Registry {
	t.Helper()
	r, err := limits.New(limits.Deps{}, s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

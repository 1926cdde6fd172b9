package settings

import (
	"reflect"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// declaredHere are settings with a default of their own that reach a package without a method SetDefaults.
var declaredHere = map[string]string{"data_dir": "a store has no directory unless it is given one"}

// TestNoSettingHasASecondDefault changes one setting after the other that has its default in Config, and looks where it arrives: a field that its package gives a default
// would have two. PackageDefaults shares the one of the package.
func TestNoSettingHasASecondDefault(t *testing.T) {
	report := func(key, field string) {
		if declaredHere[key] == "" {
			t.Errorf("%s has a default in Config and another one for %s: add it to PackageDefaults, and remove the tag", key, field)
		}
	}
	if seen := secondDefaults(t, Default(), func(c *Config) map[string]any { return c.parts() }, report); seen < 20 {
		t.Errorf("only %d settings with a default in Config were seen", seen)
	}
}

// parts returns the results of all methods of Config that make the settings of a package.
func (c *Config) parts() map[string]any {
	parts := map[string]any{}
	v := reflect.ValueOf(c)
	for i := range v.NumMethod() {
		name, m := v.Type().Method(i).Name, v.Method(i)
		if strings.HasPrefix(name, "For") && m.Type().NumIn() == 0 && m.Type().NumOut() == 1 {
			parts[name] = m.Call(nil)[0].Interface()
		}
	}
	return parts
}

// secondDefaults reports the settings of c with a default of their own that arrive in fields of parts that have one, too. It returns the number of settings it looked at.
func secondDefaults[C any](t *testing.T, c C, parts func(*C) map[string]any, report func(key, field string)) (seen int) {
	shared := map[string]any{}
	if s, ok := any(&c).(setting.Shared); ok {
		shared = s.PackageDefaults()
	}
	before := parts(&c)
	for _, s := range setting.List(&c) {
		if _, ok := shared[s.Key]; ok || s.Default == "" || s.Switch() || !s.Scalar() {
			continue
		}
		seen++
		changed := c
		for _, other := range setting.List(&changed) {
			if other.Key == s.Key {
				change(t, other)
			}
		}
		for name, part := range parts(&changed) {
			was, is := reflect.ValueOf(before[name]), reflect.ValueOf(part)
			for _, field := range secondly(was.Type().String(), was, is, reflect.Zero(was.Type()), false) {
				report(s.Key, field)
			}
		}
	}
	return seen
}

// change sets a setting to another value than its default.
func change(t *testing.T, s setting.Setting) {
	t.Helper()
	tries := append(s.OneOf, "1", "7", "1h", "3h", "1MiB", "127.0.0.1:1")
	for _, text := range tries {
		if text != s.Default && s.Set(text) == nil && s.Text() != s.Default {
			return
		}
	}
	t.Fatalf("%s: no other value is known", s.Key)
}

// secondly lists the fields in which two values differ and which defaults sets, or may set: fills is false where no method SetDefaults is known.
func secondly(path string, was, is, defaults reflect.Value, fills bool) (found []string) {
	switch {
	case was.Kind() == reflect.Struct:
		own := reflect.New(was.Type())
		own.Elem().Set(defaults)
		if p, ok := own.Interface().(interface{ SetDefaults() }); ok {
			p.SetDefaults()
			fills = true
		}
		for i := range was.NumField() {
			if f := was.Type().Field(i); f.IsExported() {
				found = append(found, secondly(path+"."+f.Name, was.Field(i), is.Field(i), own.Elem().Field(i), fills)...)
			}
		}
	case was.Comparable() && was.Kind() != reflect.Pointer && was.Kind() != reflect.Interface && !was.Equal(is) && (!fills || !defaults.IsZero()):
		found = append(found, path)
	}
	return found
}

// part and planted are settings with one default too many.
type part struct{ Max, Free int }

func (p *part) SetDefaults() {
	if p.Max == 0 {
		p.Max = 3
	}
}

type planted struct {
	Max  int `yaml:"max" default:"3" help:"Twice."`
	Free int `yaml:"free" default:"4" help:"Once."`
}

func TestSecondDefaultsAreSeen(t *testing.T) {
	var got []string
	secondDefaults(t, setting.Defaults[planted](), func(c *planted) map[string]any { return map[string]any{"part": part{c.Max, c.Free}} },
		func(key, field string) { got = append(got, key+" "+field) })
	if want := []string{"max settings.part.Max"}; !reflect.DeepEqual(got, want) {
		t.Errorf("seen: %q, want %q", got, want)
	}
}

// TestLimitsOfLabelsAreThoseOfPoint: decoders without limits of a table keep to the limits that users have by default.
func TestLimitsOfLabelsAreThoseOfPoint(t *testing.T) {
	s := limits.Settings{}
	s.SetDefaults()
	d := s.Defaults
	if own := (point.LabelLimits{Count: int(*d.LabelsPerSeries), NameBytes: int(*d.LabelNameBytes), ValueBytes: int(*d.LabelValueBytes)}); own != point.DefaultLabelLimits {
		t.Errorf("protocols/point: %+v, users have %+v", point.DefaultLabelLimits, own)
	}
}

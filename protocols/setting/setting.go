package setting

import (
	"bytes"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// EnvironPrefix begins the names of variables: SPILLWAY_STORAGE_HEAD_BYTES_MAX sets storage.head_bytes_max.
const EnvironPrefix = "SPILLWAY_"

// Setting is one setting of a struct, and where its value lies.
type Setting struct {
	Key           string // storage.head_bytes_max
	Help, Price   string
	Default, Auto string
	Min, Max      string
	OneOf         []string
	Flag          string   // without dashes
	Shown         bool     // the flag, by --help
	Reload        bool     // its value is read again by a running process
	Reread        bool     // it names a file, which is read again; another path needs a restart
	For           []string // processes that have it; none: all
	value         reflect.Value
}

// Shared are settings some of whose defaults are declared in the packages that they are for: by key, numbers, texts and times. Such a field has no tag default.
type Shared interface{ PackageDefaults() map[string]any }

// List gives the settings of the struct that v points to, in the order of their declaration. Lists and maps are settings; structs
// are entered.
func List(v any) []Setting {
	list := walk(reflect.ValueOf(v).Elem(), nil, "", nil, false)
	if shared, ok := v.(Shared); ok {
		share(list, shared.PackageDefaults())
	}
	return list
}

// share gives settings the defaults of packages, by key.
func share(list []Setting, defaults map[string]any) {
	for i := range list {
		s := &list[i]
		value, ok := defaults[s.Key]
		if !ok {
			continue
		}
		if s.Default != "" {
			fault.Bug("%s has two defaults", s.Key)
		}
		own := Setting{Key: s.Key, value: reflect.New(s.value.Type()).Elem()}
		own.value.Set(reflect.ValueOf(value).Convert(own.value.Type()))
		s.Default = own.Text()
		delete(defaults, s.Key)
	}
	for key := range defaults {
		fault.Bug("no setting is called %s, and a package has its default", key)
	}
}

func walk(v reflect.Value, out []Setting, path string, roles []string, reload bool) []Setting {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if !f.IsExported() || tag == "-" {
			continue
		}
		of := roles
		if r := f.Tag.Get("for"); r != "" {
			of = strings.Fields(r)
		}
		again := reload || f.Tag.Get("reload") == "yes"
		key := tag
		if path != "" {
			key = path + "." + tag
		}
		if options == "inline" {
			key = path
		}
		if v.Field(i).Kind() == reflect.Struct {
			out = walk(v.Field(i), out, key, of, again)
			continue
		}
		s := Setting{
			Key: key, Help: f.Tag.Get("help"), Price: f.Tag.Get("price"), Default: f.Tag.Get("default"), Auto: f.Tag.Get("auto"),
			Min: f.Tag.Get("min"), Max: f.Tag.Get("max"), OneOf: strings.Fields(f.Tag.Get("one_of")),
			Flag: cmp.Or(f.Tag.Get("flag"), f.Tag.Get("name")), Reload: again, Reread: f.Tag.Get("reload") == "file", For: of, value: v.Field(i),
		}
		if s.Shown = s.Flag != ""; !s.Shown {
			s.Flag = strings.ReplaceAll(key, "_", "-")
		}
		out = append(out, s)
	}
	return out
}

// Blocks gives the settings of a list or map of blocks, with keys like kafka[].group and limits.tables.<name>.weight; none for other
// settings.
func (s *Setting) Blocks() []Setting {
	t := s.value.Type()
	if s.Scalar() || t.Elem().Kind() != reflect.Struct {
		return nil
	}
	key := s.Key + "[]"
	if t.Kind() == reflect.Map {
		key = s.Key + ".<name>"
	}
	var out []Setting
	for _, b := range walk(reflect.New(t.Elem()).Elem(), nil, key, s.For, s.Reload) {
		out = append(append(out, b), b.Blocks()...)
	}
	return out
}

// Variable is the name of the setting's variable in the environment.
func (s *Setting) Variable() string {
	return EnvironPrefix + strings.ToUpper(strings.ReplaceAll(s.Key, ".", "_"))
}

// Scalar reports whether the setting is one value, as opposed to a list or a map of blocks.
func (s *Setting) Scalar() bool {
	k := s.value.Kind()
	return k != reflect.Map && (k != reflect.Slice || s.value.Type().Elem().Kind() == reflect.String)
}

// Switch reports whether the setting is yes or no.
func (s *Setting) Switch() bool { return s.value.Kind() == reflect.Bool }

// Type names in a word the values that a user writes.
func (s *Setting) Type() string {
	v := s.value
	if v.Kind() == reflect.Pointer {
		v = reflect.New(v.Type().Elem()).Elem()
	}
	switch v.Interface().(type) {
	case Bytes:
		return "size"
	case Span, model.Duration:
		return "time span"
	case Moment:
		return "date"
	}
	switch v.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	case reflect.Slice:
		return "list"
	case reflect.Map:
		return "map"
	}
	return "number"
}

// Is reports whether processes of the role have the setting.
func (s *Setting) Is(role string) bool { return len(s.For) == 0 || slices.Contains(s.For, role) }

// Set reads the value as a user writes it: a list of texts apart by commas, or in YAML. Errors are Invalid; bounds are not looked at.
func (s *Setting) Set(text string) error {
	target := s.value.Addr().Interface()
	switch {
	case s.value.Kind() == reflect.String:
		s.value.SetString(text)
		return nil
	case s.value.Kind() == reflect.Slice && s.Scalar() && !strings.HasPrefix(text, "["):
		list := reflect.MakeSlice(s.value.Type(), 0, 1)
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = reflect.Append(list, reflect.ValueOf(part).Convert(s.value.Type().Elem()))
			}
		}
		s.value.Set(list)
		return nil
	}
	if u, ok := target.(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(target); err != nil && !errors.Is(err, io.EOF) {
		return fault.Errorf(fault.Invalid, "%q is no %s", text, s.Type())
	}
	return nil
}

// Text is the value as a user would write it; nothing where there is none.
func (s *Setting) Text() string {
	if s.value.Kind() == reflect.Pointer && s.value.IsNil() {
		return ""
	}
	if m, ok := s.value.Interface().(encoding.TextMarshaler); ok {
		text, _ := m.MarshalText()
		return string(text)
	}
	if s.value.Kind() == reflect.String {
		return s.value.String()
	}
	text, err := yaml.Marshal(s.value.Interface())
	if err != nil {
		fault.Bug("%s: %v", s.Key, err)
	}
	return string(bytes.TrimSpace(text))
}

// Fill gives the settings that are zero their defaults. Switches are left alone: a default and a switch set to off look the same.
func Fill(v any) {
	for _, s := range List(v) {
		if s.Default != "" && !s.Switch() && s.value.IsZero() {
			s.must(s.Default)
		}
	}
}

// Defaults gives the settings before a user sets any.
func Defaults[T any]() (v T) {
	for _, s := range List(&v) {
		if s.Default != "" {
			s.must(s.Default)
		}
	}
	return v
}

func (s *Setting) must(text string) {
	if err := s.Set(text); err != nil {
		fault.Bug("default of %s: %v", s.Key, err)
	}
}

// Environ sets settings from variables. A variable with the prefix that names no setting is an error, like an unknown key in a
// file; others lists those that mean something else. Errors are Invalid and name every mistake.
func Environ(v any, env, others []string) error {
	by := map[string]*Setting{}
	for _, s := range List(v) {
		by[s.Variable()] = &s
	}
	var errs []error
	for _, e := range env {
		name, text, _ := strings.Cut(e, "=")
		s := by[name]
		switch {
		case !strings.HasPrefix(name, EnvironPrefix) || slices.Contains(others, name):
		case s == nil:
			errs = append(errs, fmt.Errorf("%s means no setting", name))
		default:
			if err := s.Set(text); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	return fault.Wrap(errors.Join(errs...), fault.Invalid, "environment")
}

// Check compares every setting with its bounds and choices. Errors are Invalid and name every mistake, by its key.
func Check(v any) error {
	var errs []error
	for _, s := range List(v) {
		if err := s.check(); err != nil {
			errs = append(errs, err)
		}
	}
	return fault.Wrap(errors.Join(errs...), fault.Invalid, "settings")
}

func (s *Setting) check() error {
	v := s.value
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	if len(s.OneOf) > 0 && v.Kind() == reflect.String && v.String() != "" && !slices.Contains(s.OneOf, v.String()) {
		return fmt.Errorf("%s %q is none of %s", s.Key, v.String(), strings.Join(s.OneOf, ", "))
	}
	n, ok := asNumber(v)
	switch {
	case !ok:
	case s.Min == "" && n.negative:
		return fmt.Errorf("%s is %s, and must not be negative", s.Key, s.Text())
	case s.Min != "" && n.less(s.bound(s.Min)) && (!v.IsZero() || s.Default != ""):
		return fmt.Errorf("%s is %s, and must be %s at least", s.Key, s.Text(), s.Min)
	case s.Max != "" && s.bound(s.Max).less(n):
		return fmt.Errorf("%s is %s, and must be %s at most", s.Key, s.Text(), s.Max)
	}
	return nil
}

// number is an integer of any kind.
type number struct {
	negative bool
	abs      uint64
}

func (a number) less(b number) bool {
	switch {
	case a.negative != b.negative:
		return a.negative
	case a.negative:
		return a.abs > b.abs
	}
	return a.abs < b.abs
}

func asNumber(v reflect.Value) (n number, ok bool) {
	switch {
	case v.CanInt():
		n = number{v.Int() < 0, uint64(v.Int())}
		if n.negative {
			n.abs = -n.abs
		}
	case v.CanUint():
		n = number{abs: v.Uint()}
	default:
		return n, false
	}
	return n, true
}

// bound reads a bound as a value of the setting's type.
func (s *Setting) bound(text string) number {
	t := s.value.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	b := Setting{Key: s.Key, value: reflect.New(t).Elem()}
	if i, err := strconv.ParseInt(text, 10, 64); err == nil && b.value.CanInt() {
		b.value.SetInt(i)
	} else {
		b.must(text)
	}
	n, _ := asNumber(b.value)
	return n
}

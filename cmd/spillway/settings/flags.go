package settings

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// The processes that have settings.
const (
	Standalone = "standalone"
	Gateway    = "gateway"
	Storage    = "storage"
)

// Flags are the settings of a process on its command line: one flag for each that is a single value. --help shows
// those that a newcomer needs.
type Flags struct {
	ConfigFile string       `name:"config.file" help:"YAML file with settings; spillway config reference lists them." type:"path" env:"SPILLWAY_CONFIG_FILE"`
	Settings   kong.Plugins `embed:""`

	// Constant after NewFlags.
	role  string
	build api.Build
	given []givenFlag
}

// givenFlag is where the parser puts the text of one setting's flag.
type givenFlag struct {
	key   string
	value reflect.Value // *string or *bool
}

// NewFlags makes the flags of a role, of a program built so.
func NewFlags(role string, build api.Build) Flags {
	var (
		c      = Default()
		fields []reflect.StructField
		f      = Flags{role: role, build: build}
	)
	for _, s := range setting.List(&c) {
		if !s.Scalar() || !s.Is(role) {
			continue
		}
		t := reflect.TypeFor[*string]()
		tag := "name:" + strconv.Quote(s.Flag) + " help:" + strconv.Quote(helpOf(&s)) + " placeholder:" + strconv.Quote(strings.ToUpper(strings.ReplaceAll(s.Type(), " ", "-")))
		if s.Switch() {
			t = reflect.TypeFor[*bool]()
			tag += ` negatable:""`
		}
		if !s.Shown {
			tag += ` hidden:""`
		}
		fields = append(fields, reflect.StructField{Name: fmt.Sprintf("Flag%d", len(fields)), Type: t, Tag: reflect.StructTag(tag)})
		f.given = append(f.given, givenFlag{key: s.Key})
	}
	all := reflect.New(reflect.StructOf(fields))
	for i := range f.given {
		f.given[i].value = all.Elem().Field(i)
	}
	f.Settings = kong.Plugins{all.Interface()}
	return f
}

func helpOf(s *setting.Setting) string {
	text := strings.TrimSuffix(s.Help, ".")
	switch {
	case s.Auto != "":
		return text + " (default: " + s.Auto + ")."
	case s.Default != "":
		return text + " (default " + s.Default + ")."
	}
	return text + "."
}

// Config combines defaults, file, environment and flags, in this order; the caller still has to call Complete. Errors are
// Invalid.
func (f *Flags) Config() (Config, error) {
	c, err := Load(f.ConfigFile)
	if err != nil {
		return c, err
	}
	c.role, c.Build = f.role, f.build
	by := map[string]*setting.Setting{}
	for _, s := range setting.List(&c) {
		by[s.Key] = &s
	}
	for _, g := range f.given {
		if g.value.IsNil() {
			continue
		}
		s := by[g.key]
		if err := s.Set(fmt.Sprint(g.value.Elem().Interface())); err != nil {
			return c, fault.Annotate(err, "--%s (%s, %s)", s.Flag, s.Variable(), s.Key)
		}
		c.RetentionSet = c.RetentionSet || s.Key == "tables.retention"
	}
	return c, nil
}

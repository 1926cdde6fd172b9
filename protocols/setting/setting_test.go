package setting_test

import (
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/setting"
)

type inner struct {
	Size   setting.Bytes  `yaml:"size" default:"64MiB" min:"1MiB" max:"1GiB" help:"A size."`
	Auto   setting.Bytes  `yaml:"auto" auto:"half of size" min:"1MiB" help:"Worked out."`
	Wait   setting.Span   `yaml:"wait" default:"1d" flag:"wait" help:"A time."`
	Mode   string         `yaml:"mode" default:"count" one_of:"count info" help:"A choice."`
	On     bool           `yaml:"on" default:"true" help:"A switch."`
	Number int            `yaml:"number" help:"No bound but zero."`
	Until  setting.Moment `yaml:"until" help:"A date."`
	Names  []string       `yaml:"names" help:"A list."`
	Less   *setting.Count `yaml:"less,omitempty" max:"2k" help:"May be missing."`
}

type outer struct {
	hidden int
	Dir    string `yaml:"dir" default:"./data" help:"A directory."`
	Inner  inner  `yaml:"inner" for:"gateway"`
	Blocks []struct {
		A int `yaml:"a" help:"Inside."`
	} `yaml:"blocks" help:"Blocks."`
}

func find(t *testing.T, v *outer, key string) *setting.Setting {
	t.Helper()
	for _, s := range setting.List(v) {
		if s.Key == key {
			return &s
		}
	}
	t.Fatalf("there is no %s", key)
	return nil
}

func TestOneDeclarationGivesKeyVariableFlagAndDefault(t *testing.T) {
	v := setting.Defaults[outer]()
	v.hidden = 1
	if v.Dir != "./data" || v.Inner.Size != 64<<20 || v.Inner.Wait != setting.Span(24*time.Hour) || !v.Inner.On || v.Inner.Mode != "count" {
		t.Errorf("%+v", v)
	}
	s := find(t, &v, "inner.size")
	if s.Variable() != "SPILLWAY_INNER_SIZE" || s.Flag != "inner.size" || s.Shown || s.Text() != "64MiB" || !s.Is("gateway") || s.Is("storage") {
		t.Errorf("%+v %s", s, s.Text())
	}
	if s := find(t, &v, "inner.wait"); s.Flag != "wait" || !s.Shown || s.Text() != "1d" {
		t.Errorf("%+v", s)
	}
	if s := find(t, &v, "blocks"); s.Scalar() {
		t.Error("a list of blocks is no scalar")
	}
	v.Inner.On, v.Inner.Size = false, 0
	setting.Fill(&v)
	if v.Inner.On || v.Inner.Size != 64<<20 {
		t.Errorf("a switch that was set is changed, or a size is not filled in: %+v", v.Inner)
	}
}

func TestWhatASettingTakes(t *testing.T) {
	v := setting.Defaults[outer]()
	for _, c := range []struct{ key, text, want string }{
		{"inner.size", "2GiB", "2GiB"}, {"inner.size", "1000", "1000"}, {"inner.size", "10MB", "10000000"}, {"inner.size", "1.5GiB", "!"}, {"inner.size", "-1", "!"},
		{"inner.wait", "90s", "1m30s"}, {"inner.wait", "0", "0s"}, {"inner.wait", "-1s", "!"}, {"inner.wait", "1", "!"},
		{"inner.on", "false", "false"}, {"inner.on", "perhaps", "!"},
		{"inner.number", "-5", "-5"}, {"inner.number", "x", "!"},
		{"inner.until", "2026-12-31", "2026-12-31T23:59:59.999999999Z"}, {"inner.until", "", ""}, {"inner.until", "soon", "!"},
		{"inner.names", "[a, b]", "- a\n- b"}, {"inner.names", "c, d", "- c\n- d"}, {"inner.less", "1k", "1000"},
		{"dir", "yes: no", "yes: no"},
		{"blocks", "[{a: 1}]", "- a: 1"}, {"blocks", "[{b: 1}]", "!"},
	} {
		s := find(t, &v, c.key)
		err := s.Set(c.text)
		switch {
		case c.want == "!":
			if !fault.Is(err, fault.Invalid) {
				t.Errorf("%s: %q: %v, want Invalid", c.key, c.text, err)
			}
		case err != nil || s.Text() != c.want:
			t.Errorf("%s: %q is %q, %v; want %q", c.key, c.text, s.Text(), err, c.want)
		}
	}
}

func TestBoundsAreCheckedOnceForAll(t *testing.T) {
	v := setting.Defaults[outer]()
	if err := setting.Check(&v); err != nil {
		t.Fatal(err)
	}
	many := setting.Count(3000)
	v.Inner = inner{Size: 1 << 31, Auto: 1, Wait: -1, Mode: "guess", Number: -1, Less: &many}
	err := setting.Check(&v)
	if !fault.Is(err, fault.Invalid) {
		t.Fatal(err)
	}
	for _, want := range []string{
		"inner.size is 2GiB, and must be 1GiB at most", "inner.auto is 1, and must be 1MiB at least", "inner.wait is", `inner.mode "guess" is none of count, info`,
		"inner.number is -1, and must not be negative", "inner.less is 3000, and must be 2k at most",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	v = outer{}
	if err := setting.Check(&v); err == nil || strings.Contains(err.Error(), "inner.auto") || !strings.Contains(err.Error(), "inner.size is 0") {
		t.Errorf("%v: a size with a default must not be 0, one that is worked out may be", err)
	}
}

func TestVariablesThatMeanNothingAreErrors(t *testing.T) {
	v := setting.Defaults[outer]()
	err := setting.Environ(&v, []string{"SPILLWAY_DIR=/d", "SPILLWAY_INNER_WAIT=5m", "PATH=x", "SPILLWAY_OTHER=1", "SPILLWAY_INNER_SIZ=1", "SPILLWAY_INNER_ON=7"}, []string{"SPILLWAY_OTHER"})
	if v.Dir != "/d" || v.Inner.Wait != setting.Span(5*time.Minute) {
		t.Errorf("%+v", v)
	}
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "SPILLWAY_INNER_SIZ means no setting") || !strings.Contains(err.Error(), `SPILLWAY_INNER_ON: "7" is no true or false`) || strings.Contains(err.Error(), "OTHER") {
		t.Error(err)
	}
}

// All mistakes of a file are reported together, each with its line.
func TestYAMLReportsEveryMistake(t *testing.T) {
	var v outer
	err := yaml.Unmarshal([]byte("inner:\n  size: 5 apples\n  wait: soon\n"), &v)
	if err == nil || !strings.Contains(err.Error(), "line 2") || !strings.Contains(err.Error(), "line 3") {
		t.Error(err)
	}
}

// TestMistakesInYAMLAreInTheUsersWords: messages named types of the program, and a second document was not read without a word.
func TestMistakesInYAMLAreInTheUsersWords(t *testing.T) {
	type file struct {
		Number int            `yaml:"number"`
		Count  uint           `yaml:"count"`
		Share  float64        `yaml:"share"`
		On     bool           `yaml:"on"`
		Text   string         `yaml:"text"`
		List   []string       `yaml:"list"`
		Map    map[string]int `yaml:"map"`
		Size   setting.Bytes  `yaml:"size"`
		Until  setting.Moment `yaml:"until"`
		Inside struct {
			A int `yaml:"a"`
		} `yaml:"inside"`
		Times []struct {
			At time.Time `yaml:"at"`
		} `yaml:"times"`
	}
	f := func(text, want string) {
		t.Helper()
		var v file
		err := setting.DecodeYAML([]byte(text), &v)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || err.Error() != want):
			t.Errorf("%q: %v\nwant %s", text, err, want)
		}
	}
	f("", "")
	f("# nothing\n", "")
	f("number: 3\ninside: {a: 1}\nuntil: 2026-12-31\n", "")
	f("number: many", `line 1: "many" stands where a whole number is expected`)
	f("number: [1]", "line 1: a list stands where a whole number is expected")
	f("count: -1", `line 1: "-1" stands where a whole number that is not negative is expected`)
	f("share: half", `line 1: "half" stands where a number is expected`)
	f("on: perhaps", `line 1: "perhaps" stands where true or false is expected`)
	f("text: {a: 1}", "line 1: a block of keys stands where a text is expected")
	f("list: {a: 1}", "line 1: a block of keys stands where a list is expected")
	f("map: [1]", "line 1: a list stands where a block of keys is expected")
	f("inside: 7", `line 1: "7" stands where a block of keys is expected`)
	f("size: [1]", "line 1: a list or block stands where one value is expected")
	f("times: [{at: soon}]", `"soon" is no time; write 2026-12-31T12:00:00Z`)
	f("times: [{at: [1]}]", "line 1: a list stands where a time such as 2026-12-31T12:00:00Z is expected")
	f("number: a\n\ncount: b\nnumbr: 1", "line 1: \"a\" stands where a whole number is expected\nline 3: \"b\" stands where a whole number that is not negative is expected\nline 4: the key \"numbr\" is not known here; did you mean number?")
	f("number: 1\nnumber: 2", `line 2: the key "number" stands here twice; first in line 1`)
	f("number: x\nuntil: soon", "line 1: \"x\" stands where a whole number is expected\nline 2: \"soon\" is no time; write 2026-12-31, or 2026-12-31T12:00:00Z")
	f("number: 1e3\nmap: {a: 2.0}\nshare: 0.5", "")
	f("number: 1.5\ninside: {a: 2.5}\nmap: {a: 3, b: 0.1}",
		"line 1: \"1.5\" stands where a whole number is expected\nline 2: \"2.5\" stands where a whole number is expected\nline 3: \"0.1\" stands where a whole number is expected")
	f("number: 1\n---\n", "")
	f("---\nnumber: 1\n--- # end\n---\n", "")
	f("number: 1\n---\n# more\n---\nnumber: 2", "more than one YAML document: nothing behind the line --- would be read")
	f("number: 1\n---\nnumber: 2", "more than one YAML document: nothing behind the line --- would be read")
	f("inside:\n\ta: 1", "line 2: a tab indents it: YAML is indented by spaces alone")
	f("text: |\n  a\n  \tb\n", "")
	f("a: b: c", "mapping values are not allowed in this context")
}

func TestReferenceHasEverySetting(t *testing.T) {
	v := setting.Defaults[outer]()
	var b strings.Builder
	if err := setting.Reference(&b, setting.List(&v), map[string]string{"inner": "What is inside."}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"## Without a section", "## `inner`", "What is inside. Of gateway only.", "| `inner.size` | size, 1MiB to 1GiB | `64MiB` | A size. |",
		"| `inner.auto` | size from 1MiB | half of size |", "Flag `--wait`.", "| `inner.mode` | `count`, `info` |", "## `blocks`", "| `blocks[].a` | number | none | Inside. |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
}

// TestUnknownKeysNameTheOnesThatAreMeant: "log: {level: debug}", which other products have, was not known, and nothing named the known ones.
func TestUnknownKeysNameTheOnesThatAreMeant(t *testing.T) {
	type file struct {
		LogLevel string `yaml:"log_level"`
		Peer     struct {
			Listen    string `yaml:"listen"`
			Advertise string `yaml:"advertise"`
		} `yaml:"peer"`
		Tables struct {
			Retention string `yaml:"retention"`
		} `yaml:"tables"`
		Blocks []struct {
			Group string `yaml:"group"`
		} `yaml:"blocks"`
	}
	f := func(text, want string) {
		t.Helper()
		var v file
		err := setting.DecodeYAML([]byte(text), &v)
		if err == nil || !strings.Contains(err.Error(), "is not known here"+want) || want == "" && strings.Contains(err.Error(), "mean") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	f("log: {level: debug}", "; did you mean log_level?")
	f("log:\n  level: debug\n  format: json\n", "; did you mean log_level?")
	f("loglevel: debug", "; did you mean log_level?")
	f("log-level: debug", "; did you mean log_level?")
	f("log_levle: debug", "; did you mean log_level?")
	f("peer.listen: h:1", "; a dot stands for a block: write peer: {listen: …}")
	f("peer_advertise: h:1", "; did you mean peer.advertise?")
	f("peer: {advertised: h:1}", "; did you mean peer.advertise?")
	f("retention: 1d", "; did you mean tables.retention?")
	f("blocks: [{grup: a}]", "; did you mean blocks.group?")
	f("colour: red", "")
}

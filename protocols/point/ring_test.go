package point

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/fault"
)

func mustRule(t testing.TB, s string) RingRule {
	t.Helper()
	r, err := ParseRingRule(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRingRulesAreReadAsTheyAreWritten(t *testing.T) {
	for _, s := range []string{"", "host", "host,job", "path:8", "path:255", "path:/", "path:/2", "__name__:_,host,a:.3,b:1", "µ"} {
		if got := mustRule(t, s).String(); got != s {
			t.Errorf("%q is written as %q", s, got)
		}
	}
	for _, s := range []string{",", "host,", "host,host:2", "host:", "host:0", "host:256", "host:08", "host:/1", "host:/02", "host:/x", "host: ", "host:\x7f", ":/", "a,b,c,d,e", strings.Repeat("n", LabelNameMax+1)} {
		if r, err := ParseRingRule(s); !fault.Is(err, fault.Invalid) || r != (RingRule{}) {
			t.Errorf("%q is taken: %v %v", s, r, err)
		}
	}
}

// The numbers are those of data on disks and in maps: a change of them would lose rows to their readers.
func TestRingPointsNeverChange(t *testing.T) {
	l := MakeLabels(MetricName, "cpu_user", "host", "h1", "path", "/a/b/c")
	for rule, want := range map[string]uint64{
		"":                0xf96b8d5880e3d35f,
		"host":            0x9756612280e3d35f,
		"host,absent":     0x18cdcb8a80e3d35f,
		"absent":          0xf96b8d5880e3d35f,
		"path:3":          0x8a73b82080e3d35f,
		"path:/3":         0x0d7aaf0080e3d35f,
		"__name__:_,host": 0xca91c7ff80e3d35f,
	} {
		r := mustRule(t, rule)
		if got := r.Point(l); got != want {
			t.Errorf("%q: %#x, want %#x", rule, got, want)
		}
	}
}

func TestSeriesOfOnePrefixLieBesideOneAnother(t *testing.T) {
	same := func(rule, a, b string, want bool) {
		t.Helper()
		r := mustRule(t, rule)
		x, y := MakeLabels(MetricName, "m1", "path", a), MakeLabels(MetricName, "m2", "path", b)
		if got := r.Point(x)>>32 == r.Point(y)>>32; got != want {
			t.Errorf("%s: %q and %q lie together: %v", rule, a, b, got)
		}
		if r.Point(x) == r.Point(y) {
			t.Errorf("%s: two series have one point, so that they cannot be cut apart", rule)
		}
	}
	same("path", "a", "a", true)
	same("path", "a", "b", false)
	same("path:2", "abc", "abd", true)
	same("path:2", "ab", "abd", true)
	same("path:2", "a", "ab", false)
	same("path:/", "a/b", "a/c", true)
	same("path:/", "a", "a/c", true)
	same("path:/", "/b", "/c", true) // both are empty up to it
	same("path:/2", "a/b/c", "a/b/d", true)
	same("path:/2", "a/b/c", "a/c/c", false)
	same("path:/2", "a", "a/", false)
}

func TestAPrefixForPeople(t *testing.T) {
	r := mustRule(t, "path:/2,job")
	for l, want := range map[Labels]string{
		MakeLabels(MetricName, "m", "path", "/a/b", "job", "x"): `path="/a", job="x"`,
		MakeLabels(MetricName, "m", "job", "x"):                 `job="x"`,
		MakeLabels(MetricName, "m"):                             "",
	} {
		if got := r.Prefix(l); got != want {
			t.Errorf("%v: %s, want %s", l, got, want)
		}
	}
}

// A query that knows the values of a rule's labels is asked only where the series may lie: all of them must.
func TestSeriesLieInTheRangeOfTheirPrefix(t *testing.T) {
	value := rapid.StringMatching(`[ab/.]{0,6}`)
	rapid.Check(t, func(t *rapid.T) {
		var parts []string
		for i := range rapid.IntRange(1, RingLabelsMax).Draw(t, "labels") {
			parts = append(parts, fmt.Sprintf("l%d", i)+rapid.SampledFrom([]string{"", ":1", ":3", ":/", ":/2", ":.3"}).Draw(t, "cut"))
		}
		r, err := ParseRingRule(strings.Join(parts, ","))
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]string{}
		pairs := []string{MetricName, rapid.StringMatching(`[a-c]`).Draw(t, "name")}
		for i := range RingLabelsMax {
			name := fmt.Sprintf("l%d", i)
			if v := value.Draw(t, name); v != "" {
				values[name], pairs = v, append(pairs, name, v)
			}
		}
		l := MakeLabels(pairs...)
		at, ok := r.Range(func(label string) (string, bool) { v, ok := values[label]; return v, ok })
		if p := r.Point(l); ok && (p < at.Lo || p > at.Hi) {
			t.Fatalf("rule %s: %v lies at %#x, not in %#x to %#x", r, l, p, at.Lo, at.Hi)
		}
		if missing := func() bool {
			for i := range r.used() {
				if values[r.parts[i].label] == "" {
					return true
				}
			}
			return false
		}(); ok == missing {
			t.Fatalf("rule %s: %v has a range: %v", r, l, ok)
		}
	})
}

func TestARangeOverlapsColumns(t *testing.T) {
	r := RingRange{Lo: 5 << 32, Hi: 6<<32 - 1}
	for _, c := range []struct {
		lo, hi uint64
		want   bool
	}{{0, 0, true}, {0, 5 << 32, false}, {0, 5<<32 + 1, true}, {6<<32 - 1, 0, true}, {6 << 32, 0, false}, {5<<32 + 7, 5<<32 + 8, true}} {
		if got := r.Overlaps(c.lo, c.hi); got != c.want {
			t.Errorf("[%#x, %#x): %v", c.lo, c.hi, got)
		}
	}
}

func TestARingPointAllocatesNothing(t *testing.T) {
	r := mustRule(t, "host,path:/2")
	l := MakeLabels(MetricName, "cpu_user", "host", "h1", "path", "/a/b/c")
	if n := testing.AllocsPerRun(100, func() { r.Point(l) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRingPoint(b *testing.B) {
	l := MakeLabels(MetricName, "cpu_usage_user", "host", "host_17", "region", "eu-west-1", "datacenter", "eu-west-1b", "rack", "31", "os", "Ubuntu16.04")
	for _, s := range []string{"", "host", "__name__:_,host"} {
		r := mustRule(b, s)
		b.Run("rule="+s, func(b *testing.B) {
			for b.Loop() {
				r.Point(l)
			}
		})
	}
}

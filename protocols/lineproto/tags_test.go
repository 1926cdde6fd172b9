package lineproto

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Lines with the tags of those before them, or almost, mean the same as each alone: a decoder reads such tags once.
func TestTagsOfTheLineBefore(t *testing.T) {
	key := rapid.SampledFrom([]string{"m", "n", `esc\,aped`, "é", ""})
	tags := rapid.SampledFrom([]string{"", ",a=1", ",a=1,b=2", ",b=2,a=1", ",a=1,a=1", ",a=1,b=", `,a=1\ `, `,a=1\,b=2`, `,a\=1=2`, ",a", ",a=1,", ",é=ü", ",\xff=1", ",__name__=x", ",A=1,z=2"})
	fields := rapid.SampledFrom([]string{" value=1", " f=1", " f=1,g=2i", ` s="x"`, " f=", "", " f=1 5", "  f=1", "\tf=1"})
	rapid.Check(t, func(t *rapid.T) {
		few := rapid.SampledFrom(rapid.SliceOfN(tags, 1, 6).Draw(t, "few"))
		lines := make([]string, rapid.IntRange(1, 20).Draw(t, "lines"))
		for i := range lines {
			lines[i] = key.Draw(t, "key") + few.Draw(t, "tags") + fields.Draw(t, "fields")
		}
		settings := Settings{Partial: true, Strings: rapid.SampledFrom([]StringPolicy{0, 1}).Draw(t, "strings")}
		if rapid.Bool().Draw(t, "labelled") {
			settings.DBLabel, settings.DB = "db", "x"
		}
		var want []string
		for _, l := range lines {
			want = append(want, meaning(t, &Decoder{Settings: settings}, l)...)
		}
		d := Decoder{Settings: settings}
		if rapid.Bool().Draw(t, "used") {
			meaning(t, &d, lines[0])
		}
		got := meaning(t, &d, strings.Join(lines, "\n"))
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%q:\ntogether %q\nalone    %q", lines, got, want)
		}
	})
}

// meaning is the result of decoding a body: a text for each row and for each refusal.
func meaning(t *rapid.T, d *Decoder, body string) (out []string) {
	b := point.GetBatch(point.NewDict(0))
	defer b.Put()
	if err := d.Decode([]byte(body), 7, b); err != nil {
		t.Fatal(err)
	}
	for i, id := range b.IDs {
		out = append(out, fmt.Sprintf("%s %d %v", b.Dict.Labels(id), b.Times[i], b.Values[i]))
	}
	for _, r := range b.Refused {
		out = append(out, fmt.Sprint(r.Reason, r.Kind))
	}
	return out
}

package lineproto_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestFieldsThatBecomeOneSeriesAreCounted: two measurements flatten to one name.
func TestFieldsThatBecomeOneSeriesAreCounted(t *testing.T) {
	for _, c := range []struct {
		body string
		want string // "measurement field = other otherField", one a merge
	}{
		{"a_b,h=x c=1\na,h=x b_c=2", "a b_c = a_b c"},
		{"a,h=x b_c=2\na_b,h=x c=1", "a_b c = a b_c"},
		{"a_b c=1\na b_c=2\na b_c=3", "a b_c = a_b c"},
		{"a_b value=1\na b=2", "a b = a_b value"},
		{"a b=2\na_b value=1", "a_b value = a b"},
		{"a_b_c_d e=1\na b_c_d_e=2", "a b_c_d_e = a_b_c_d e"},
		{"a_b c=1,d=1\na b_c=2,b_d=2", "a b_c = a_b c; a b_d = a_b d"},
		{"a_b,h=x c=1\na,h=y b_c=2", ""},                // another host
		{"a,h=x,i=y c=1\na,i=y,h=x c=2", ""},            // another order
		{"a value=1\na_value value=2\na_value b=3", ""}, // a_value is no field of a
		{"a b=1,b=2\na b=3", ""},
		{strings.Repeat("_", 3000) + " c=1\n" + strings.Repeat("_", 2999) + " _c=1", ""}, // beyond the names that are checked
	} {
		b := point.GetBatch(point.NewDict(0))
		d := lineproto.Decoder{Settings: lineproto.Settings{Partial: true}}
		if err := d.Decode([]byte(c.body), 1, b); err != nil || b.RefusedRows > 0 {
			t.Fatalf("%q: %v, %v", c.body, err, b.Refused)
		}
		var got []string
		for _, m := range b.Merges {
			got = append(got, fmt.Sprintf("%s %s = %s %s", m.Measurement, m.Field, m.OtherMeasurement, m.OtherField))
		}
		if text := strings.Join(got, "; "); text != c.want || b.Merged != len(got) {
			t.Errorf("%.100q: merged %q, want %q", c.body, text, c.want)
		}
	}
}

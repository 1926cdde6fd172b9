package record

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestARecordOfShortRowsDoesNotTakeTheProcessMemory: nothing bounded the rows of a record of text before all of them were decoded.
func TestARecordOfShortRowsDoesNotTakeTheProcessMemory(t *testing.T) {
	const most = 1000
	d := newTestDecoder(t, Settings{RowsMax: most})
	prom := `{"name":"m","value":1,"timestamp":1}`
	for _, c := range []struct {
		name, body, want string
		format           Format
	}{
		{"fields", `{"name":"m","fields":{"a":1` + strings.Repeat(`,"a":1`, 50_000) + `}}`, "rows in one record, at object 1", TelegrafJSON},
		{"fields of several", strings.Repeat(`{"name":"m","fields":{"a":1,"b":2,"c":3}}`, 1000), "rows in one record, at object 334", TelegrafJSON},
		{"a batch", `{"metrics":[{}` + strings.Repeat(`,{}`, 50_000) + `]}`, "1000 objects", TelegrafJSON},
		{"objects", strings.Repeat(`{}`, 50_000), "1000 objects", TelegrafJSON},
		{"samples", `[` + prom + strings.Repeat(`,`+prom, 50_000) + `]`, "1000 objects", PrometheusJSON},
		{"lines", "m " + strings.Repeat("a=1,", 50_000) + "a=1", "1000 rows", Line},
	} {
		b := &point.Batch{Dict: point.NewDict(0)}
		err := d.Decode([]byte(c.body), &Options{Format: c.format}, 1, b)
		if !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
		if n := max(cap(b.IDs), cap(b.Times), cap(b.Values), cap(b.ItemRows)); n > 2*most || b.Rows()+len(b.ItemRows)+len(b.Refused)+b.RefusedRows > 0 {
			t.Errorf("%s: memory for %d rows; left behind: %d rows, %d refused", c.name, n, b.Rows(), b.RefusedRows)
		}
	}
	b := &point.Batch{Dict: point.NewDict(0)}
	if err := d.Decode([]byte(strings.Repeat(prom, most)), &Options{Format: PrometheusJSON}, 1, b); err != nil || b.Rows() != most {
		t.Errorf("at the bound: %d rows, %v", b.Rows(), err)
	}
}

// TestTagsOfSpelledFieldsAreNotWrittenOutForEver: a field can be spelled in many ways, as a and \u0061, and each of them wrote the metric's tags
// out, and kept the unescaped text until the metric's end.
func TestTagsOfSpelledFieldsAreNotWrittenOutForEver(t *testing.T) {
	const long, letters = 60_000, 14
	metric := func(tag string, fields int) []byte {
		var body strings.Builder
		fmt.Fprintf(&body, `{"name":"m","tags":{"long":"%s"},"fields":{"b":1`, tag)
		for i := range fields {
			body.WriteString(`,"`)
			for bit := range letters {
				body.WriteString([]string{"a", `\u0061`}[i>>bit&1])
			}
			body.WriteString(`":1`)
		}
		body.WriteString(`}}`)
		return []byte(body.String())
	}
	d := newTestDecoder(t, Settings{})
	b := &point.Batch{Dict: point.NewDict(0)}
	if err := d.Decode(metric(strings.Repeat("v", long)+`\n`, 300), &Options{Format: TelegrafJSON}, 1, b); err != nil || b.Rows() != 301 || b.Dict.Len() != 2 {
		t.Errorf("%d rows of %d series, %v", b.Rows(), b.Dict.Len(), err)
	}
	if n := cap(d.json.text); n > 4*long {
		t.Errorf("%d bytes of unescaped text are kept for 300 fields", n)
	}
	b = &point.Batch{Dict: point.NewDict(0)}
	err := d.Decode(metric(strings.Repeat("v", long), point.LabelsRequestMax/long+100), &Options{Format: TelegrafJSON}, 1, b)
	if !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), "at object 1") || b.Rows() > 0 {
		t.Errorf("%d rows, %v", b.Rows(), err)
	}
}

func newTestDecoder(t *testing.T, s Settings) *Decoder {
	d, err := NewDecoder(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

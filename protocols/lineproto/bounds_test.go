package lineproto

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestABodyOfShortFieldsDoesNotTakeTheProcessMemory: 64 MiB of them became 16.8 million rows before anything counted them, and each end of a line
// four bytes.
func TestABodyOfShortFieldsDoesNotTakeTheProcessMemory(t *testing.T) {
	const most = 1000
	good := "m,at=1 a=1,b=2\nbad\n"
	for body, where := range map[string]string{
		good + "m " + strings.Repeat("a=1,", 100_000) + "a=1\n":    "line 3: more than 1000 rows",
		good + strings.Repeat("m a=1,b=2\n", most):                 "line 502: more than 1000 rows",
		good + strings.Repeat("\n", 100_000) + "m a=1\n":           "line 100003: more than 1000 lines",
		good + strings.Repeat("x\n", 100_000):                      "line 1001: more than 1000 lines",
		good + "m s=\"" + strings.Repeat("\n", 2000) + "\"\nm a=1": "line 2004: more than 1000 lines",
	} {
		b := &point.Batch{Dict: point.NewDict(0)}
		before := lines(b)
		d := Decoder{Settings: Settings{Partial: true, RowsMax: most}}
		err := d.Decode([]byte(body), caseNow, b)
		if !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), where) {
			t.Errorf("%.40q…: %v, want %s", body, err, where)
		}
		if lines(b) != before || len(b.IDs)+len(b.Times)+len(b.Values)+len(b.ItemRows)+len(b.Refused)+b.RefusedRows > 0 {
			t.Errorf("%.40q…: left behind:\n%s", body, lines(b))
		}
		if n := max(cap(b.IDs), cap(b.Times), cap(b.Values), cap(b.ItemRows)); n > 2*most {
			t.Errorf("%.40q…: memory for %d rows", body, n)
		}
	}
	b := &point.Batch{Dict: point.NewDict(0)}
	d := Decoder{Settings: Settings{Partial: true, RowsMax: most}}
	if err := d.Decode([]byte(strings.Repeat("m a=1\n", most)), caseNow, b); err != nil || b.Rows() != most {
		t.Errorf("at the bound: %d rows, %v", b.Rows(), err)
	}
}

// memory has room for so many bytes.
type memory struct{ room, reserved int }

func (m *memory) Reserve(n int) error {
	if m.reserved+n > m.room {
		return fault.Errorf(fault.Throttled, "no memory")
	}
	m.reserved += n
	return nil
}

// TestRowsAreChargedWhileTheyAreDecoded: those of large bodies counted when all were there, so that several at once could need more than there is.
func TestRowsAreChargedWhileTheyAreDecoded(t *testing.T) {
	const rows = 3*rowsStep + 5
	body := []byte("m " + strings.Repeat("a=1,", rows-1) + "a=1\n")
	d, m := Decoder{}, memory{room: rows * point.FloatBytes}
	b := &point.Batch{Dict: point.NewDict(0)}
	d.Settings.Memory = &m
	if err := d.Decode(body, caseNow, b); err != nil || b.Rows() != rows {
		t.Fatalf("%d rows, %v", b.Rows(), err)
	}
	if least := (rows - rowsStep) * point.FloatBytes; m.reserved < least || m.reserved > rows*point.FloatBytes {
		t.Errorf("%d rows reserved %d bytes, want %d to %d", rows, m.reserved, least, rows*point.FloatBytes)
	}
	b = &point.Batch{Dict: point.NewDict(0)}
	m = memory{room: rowsStep * point.FloatBytes}
	d.Settings.Memory = &m
	if err := d.Decode(body, caseNow, b); !fault.Is(err, fault.Throttled) || b.Rows()+len(b.Refused)+len(b.ItemRows) > 0 {
		t.Errorf("without memory: %d rows, %v", b.Rows(), err)
	}
	if cap(b.Values) > 4*rowsStep {
		t.Errorf("without memory there are %d rows", cap(b.Values))
	}
}

// TestTagsOfRefusedFieldsAreNotWrittenOutForEver: each new field of a line writes out the line's tags.
func TestTagsOfRefusedFieldsAreNotWrittenOutForEver(t *testing.T) {
	const long, fields = 60_000, fieldsScanned - 1
	var line strings.Builder
	fmt.Fprintf(&line, "m,long=%s f0=1", strings.Repeat("v", long))
	for i := range fields - 1 {
		fmt.Fprintf(&line, ",f%d=1", i+1)
	}
	line.WriteByte('\n')
	dict := point.NewDict(0)
	dict.SetLabelLimits(point.DefaultLabelLimits)
	d := Decoder{Settings: Settings{Partial: true}}
	b := &point.Batch{Dict: dict}
	n := point.LabelsRequestMax/long/fields + 1
	err := d.Decode([]byte(strings.Repeat(line.String(), n)), caseNow, b)
	if !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), "the labels of new series") || b.RefusedRows+len(b.Refused) > 0 {
		t.Errorf("%d lines: %v, %d refused", n, err, b.RefusedRows)
	}
	if err := d.Decode([]byte(strings.Repeat(line.String(), 2)), caseNow, b); err != nil || b.RefusedRows != 2 {
		t.Errorf("two lines: %v, %d refused", err, b.RefusedRows)
	}
}

// TestALineOfStringsKeepsNoMemory: a line with more string fields than a series has labels is refused; its fields were listed before, 48 bytes each.
func TestALineOfStringsKeepsNoMemory(t *testing.T) {
	d := Decoder{Settings: Settings{Partial: true, Strings: InfoSeries}}
	b := &point.Batch{Dict: point.NewDict(0)}
	body := "m " + strings.Repeat(`a="",`, 100_000) + "b=1\nm b=1\n"
	if err := d.Decode([]byte(body), caseNow, b); err != nil || b.RefusedRows != 1 || b.Rows() != 1 {
		t.Errorf("%v, %d rows, %d refused", err, b.Rows(), b.RefusedRows)
	}
	if n := cap(d.strings); n > 4*point.LabelsMax {
		t.Errorf("room for %d strings", n)
	}
}

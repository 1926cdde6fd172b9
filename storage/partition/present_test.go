package partition

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// TestTheLastHourIsReadThoughTheDayHasManySeries: a selector's labels were loaded of every series of the day, so that of a day of ten
// million series no hour could be read within 4 GiB.
func TestTheLastHourIsReadThoughTheDayHasManySeries(t *testing.T) {
	const hours, series = 10, 6000
	if 3*series < narrowedMin {
		t.Fatal("too few series to be narrowed")
	}
	wide := ident
	wide.TimeHi = 2 * point.NarrowMax
	b := openBenchAs(t, vfs.NewMem(), 1, hushed, wide)
	defer b.close()
	hour := func(h int) (names []string) {
		for i := range series {
			names = append(names, fmt.Sprintf("%02d-%04d", h, i))
		}
		return names
	}
	last := func(when string, h int) {
		t.Helper()
		v, err := b.View()
		b.must(err)
		defer v.Close()
		v.Within(point.Nanos(h), point.Nanos(h))
		booked := int64(0)
		v.Watch(func(n int64) error {
			if booked += n; booked > 2*series*(matchedBytes+60) {
				return fault.Errorf(fault.TooLarge, "%d bytes are too many", booked)
			}
			return nil
		})
		ss, err := v.Match(nil)
		if err != nil {
			t.Fatalf("%s: hour %d: %v", when, h, err)
		}
		got := map[string]bool{}
		b.must(v.Read(ss, point.Nanos(h), point.Nanos(h), func(i int, _ rows.Run) error {
			got[ss[i].Labels.Get("i")] = true
			return nil
		}))
		for _, name := range hour(h) {
			if !got[name] {
				t.Fatalf("%s: hour %d: the row of %s is missing among %d", when, h, name, len(got))
			}
		}
		if len(got) != series {
			t.Fatalf("%s: hour %d: %d series have rows, want %d", when, h, len(got), series)
		}
	}
	for h := range hours {
		for _, name := range hour(h) {
			b.must(b.put(name, point.Nanos(h), float64(h)))
		}
		if h < hours-3 { // the last three hours wait for a flush that is late
			b.must(b.Flush(context.Background(), ByAge))
		}
	}
	last("rows in heads", hours-1)
	b.must(b.Flush(context.Background(), ByAge))
	last("rows in minors", 3)
	last("rows in minors", hours-1)
	b.must(b.Compact(context.Background(), ByRequest))
	last("rows in a major", 0)
	last("rows in a major", hours-1)
	b.Cool(time.Now(), 0)
	last("nothing in memory", 5)
	v, err := b.View()
	b.must(err)
	defer v.Close()
	v.Within(7, 7)
	ss, err := v.MatchDefined(nil)
	b.must(err)
	if len(ss) != hours*series {
		t.Errorf("%d series are defined, want %d: a series without rows may have exemplars", len(ss), hours*series)
	}
	ms, err := CompileMatchers(only("07-0001"))
	b.must(err)
	values, err := LabelValues([]*View{v}, ms, "i", 0)
	b.must(err)
	if len(values) != 1 {
		t.Errorf("values of one series: %v", values)
	}
}

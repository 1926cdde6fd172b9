package lineproto

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
)

// A gateway has one Dict a table and one Decoder per request; all must agree on a line, whichever reads it first.
func TestDecodersShareADict(t *testing.T) {
	dict := point.NewDict(0)
	bodies := [][]byte{cpuLines(50, benchTime), mixedLines(50, benchTime, 1), mixedLines(50, benchTime, 2), wideLine(200)}
	read := make([][]string, 8)
	var wg sync.WaitGroup
	for w := range read {
		wg.Go(func() {
			d := Decoder{Settings: Settings{Partial: true, Strings: InfoSeries}}
			for i := range bodies {
				b := point.GetBatch(dict)
				if err := d.Decode(bodies[(i+w)%len(bodies)], caseNow, b); err != nil {
					t.Error(err)
				}
				for row, id := range b.IDs {
					read[w] = append(read[w], fmt.Sprint(dict.Labels(id), b.Times[row], b.Values[row]))
				}
				b.Put()
			}
			slices.Sort(read[w])
		})
	}
	wg.Wait()
	for w := range read {
		if !slices.Equal(read[w], read[0]) {
			t.Errorf("decoder %d read something else than decoder 0", w)
		}
	}
	if want := 50*10 + 50*6 + 2*50 + 200; dict.Len() > want {
		t.Errorf("%d series, at most %d are in the bodies", dict.Len(), want)
	}
}

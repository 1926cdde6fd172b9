package partition

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
)

// TestASeriesThatReturnsDuringALimitedLookupIsFound: the index was asked before its row came, and again after it, so that it was looked for neither there nor in
// segments, with its acked rows of before. Here the row comes at each moment at which the look-up can be interrupted.
func TestASeriesThatReturnsDuringALimitedLookupIsFound(t *testing.T) {
	moments := 1
	for moment := 0; moment < moments; moment++ {
		b := openBenchWith(t, vfs.NewMem(), 1, hushed)
		for i := range 40 {
			b.must(b.put(fmt.Sprint(i), 1, 1))
		}
		for at := range point.Nanos(3) {
			b.must(b.Flush(context.Background(), ByAge))
			b.must(b.put("20", 2+at, 1))
		}
		v, err := b.View()
		b.must(err)
		if !v.warm || v.Indexed() {
			t.Fatal("no series is quiet")
		}
		at := 0
		pass := func() {
			if at == moment {
				b.must(b.put("10", 9, 1))
			}
			at++
		}
		v.Watch(func(int64) error { pass(); return nil })
		ms, err := CompileMatchers(only("10"))
		b.must(err)
		found, err := First([]*View{v}, ms, segment.NewSelector(ms), 3, func([]Series) { pass() })
		b.must(err)
		if len(found) != 1 || found[0] != labelsOf("10") {
			t.Errorf("the row came at moment %d of %d: found %v", moment, at, found)
		}
		moments = at
		v.Close()
		b.close()
	}
	if moments < 3 {
		t.Errorf("%d moments", moments)
	}
}

// TestAllThatALimitedLookupHoldsIsBooked asks for half of a segment's series: the list of all of them is in memory meanwhile, and half of it in the end.
func TestAllThatALimitedLookupHoldsIsBooked(t *testing.T) {
	b := openBenchWith(t, vfs.NewMem(), 1, Settings{})
	defer b.close()
	const series = 400
	for i := range series {
		b.must(b.put(fmt.Sprint(i), 1, 1))
	}
	b.must(b.Flush(context.Background(), ByAge))
	b.Cool(time.Now(), 0)
	v, err := b.View()
	b.must(err)
	defer v.Close()
	if v.warm {
		t.Fatal("the partition is warm")
	}
	var booked booking
	v.Watch(booked.grow)
	found, err := First([]*View{v}, nil, segment.NewSelector(nil), series/2, nil)
	if err != nil || len(found) != series/2 || booked.peak < series*listedBytes || booked.now != labelsBytes(found) {
		t.Errorf("at most %d bytes were booked for %d series of %d, %d in the end, %v", booked.peak, len(found), series, booked.now, err)
	}
}

// labelsBytes is the memory of an answer.
func labelsBytes(found []point.Labels) (n int64) {
	for _, l := range found {
		n += bytesOf([]string{string(l)})
	}
	return n
}

// TestALimitedLookupBooksNoListThatItDropped: the labels that each segment gave stayed booked, so that a look-up of a few series in thousands of segments was refused for memory
// that it did not have.
func TestALimitedLookupBooksNoListThatItDropped(t *testing.T) {
	b := openBenchWith(t, vfs.NewMem(), 1, Settings{})
	defer b.close()
	const segments, series, limit = 8, 50, 5
	for s := range segments {
		for i := range series {
			b.must(b.put(fmt.Sprintf("%d-%02d-%s", s, i, strings.Repeat("x", 1000)), 1, 1))
		}
		b.must(b.Flush(context.Background(), ByAge))
	}
	b.Cool(time.Now(), 0)
	v, err := b.View()
	b.must(err)
	defer v.Close()
	if v.warm || len(v.segments) < segments {
		t.Fatalf("%d segments, warm: %v", len(v.segments), v.warm)
	}
	var booked booking
	v.Watch(booked.grow)
	found, err := First([]*View{v}, nil, segment.NewSelector(nil), limit, nil)
	if err != nil || len(found) != limit || booked.now != labelsBytes(found) {
		t.Errorf("%d bytes stay booked for %d series of %d, %v", booked.now, len(found), labelsBytes(found), err)
	}
}

package server

import (
	"slices"
	"testing"
	"time"
)

func TestVictims(t *testing.T) {
	const hot, cold = time.Second, time.Minute
	head := func(bytes, table int64, idle time.Duration) heldHead {
		return heldHead{bytes: bytes, idle: idle, greed: table > 100}
	}
	for _, c := range []struct {
		what   string
		held   []heldHead
		excess int64
		want   []int64
	}{
		{"the largest first", []heldHead{head(10, 60, hot), head(30, 60, hot), head(20, 60, hot)}, 45, []int64{30, 20}},
		{"a cold one before one three times as large", []heldHead{head(30, 60, hot), head(10, 60, cold)}, 5, []int64{10}},
		{"one of the greedy table before others", []heldHead{head(30, 40, hot), head(10, 200, hot)}, 5, []int64{10}},
		{"many small cold ones", []heldHead{head(1, 3, cold), head(1, 3, cold), head(1, 3, cold)}, 3, []int64{1, 1, 1}},
		{"nothing is needed", []heldHead{head(30, 40, hot)}, 0, nil},
	} {
		var got []int64
		for _, h := range victims(c.held, c.excess) {
			got = append(got, h.bytes)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

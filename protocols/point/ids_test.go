package point_test

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/point"
)

func TestMillisAndNanos(t *testing.T) {
	const lastMS, firstMS = math.MaxInt64 / 1_000_000, math.MinInt64 / 1_000_000 // the first is cut: its start is in range
	millis := func(ns, want int64) {
		t.Helper()
		if got := point.MillisOf(ns); got != want {
			t.Errorf("MillisOf(%d) = %d, want %d", ns, got, want)
		}
	}
	millis(0, 0)
	millis(999_999, 0)
	millis(1_000_000, 1)
	millis(-1, -1)
	millis(-1_000_000, -1)
	millis(-1_000_001, -2)
	millis(math.MaxInt64, lastMS)
	millis(math.MinInt64, firstMS-1)

	span := func(ms, first, last int64) {
		t.Helper()
		if got := point.NanosOf(ms); got != first {
			t.Errorf("NanosOf(%d) = %d, want %d", ms, got, first)
		}
		if got := point.LastNanosOf(ms); got != last {
			t.Errorf("LastNanosOf(%d) = %d, want %d", ms, got, last)
		}
	}
	span(0, 0, 999_999)
	span(-1, -1_000_000, -1)
	span(lastMS-1, (lastMS-1)*1_000_000, lastMS*1_000_000-1)
	span(lastMS, lastMS*1_000_000, math.MaxInt64)
	span(lastMS+1, math.MaxInt64, math.MaxInt64)
	span(math.MaxInt64, math.MaxInt64, math.MaxInt64)
	span(firstMS, firstMS*1_000_000, firstMS*1_000_000+999_999)
	span(firstMS-1, math.MinInt64, firstMS*1_000_000-1)
	span(firstMS-2, math.MinInt64, math.MinInt64)
	span(math.MinInt64, math.MinInt64, math.MinInt64)
}

// TestMillisCoverEveryNano decides with numbers that do not overflow.
func TestMillisCoverEveryNano(t *testing.T) {
	saturate := func(x *big.Int) int64 {
		if x.IsInt64() {
			return x.Int64()
		}
		if x.Sign() < 0 {
			return math.MinInt64
		}
		return math.MaxInt64
	}
	perMilli := big.NewInt(1_000_000)
	rapid.Check(t, func(t *rapid.T) {
		ns := rapid.OneOf(rapid.Int64(), rapid.Int64Range(math.MinInt64, math.MinInt64+3_000_000), rapid.Int64Range(math.MaxInt64-3_000_000, math.MaxInt64)).Draw(t, "ns")
		ms := point.MillisOf(ns)
		if want := new(big.Int).Div(big.NewInt(ns), perMilli); want.Int64() != ms {
			t.Fatalf("MillisOf(%d) = %d, want %v", ns, ms, want)
		}
		first := new(big.Int).Mul(big.NewInt(ms), perMilli)
		last := new(big.Int).Add(first, big.NewInt(999_999))
		if point.NanosOf(ms) != saturate(first) || point.LastNanosOf(ms) != saturate(last) || ns < point.NanosOf(ms) || ns > point.LastNanosOf(ms) {
			t.Fatalf("millisecond %d is [%d, %d], want [%v, %v]", ms, point.NanosOf(ms), point.LastNanosOf(ms), first, last)
		}
	})
}

func TestSerialsOrderByEpochThenSeq(t *testing.T) {
	rising := []point.Serial{{}, {Seq: 1}, {Seq: math.MaxUint64}, {Epoch: 1}, {Epoch: 1, Seq: 5}, {Epoch: math.MaxUint64}}
	for i, a := range rising {
		for j, b := range rising {
			if a.Less(b) != (i < j) {
				t.Errorf("%v < %v is %v", a, b, a.Less(b))
			}
		}
	}
}

func TestNamesOfIDs(t *testing.T) {
	f := func(got interface{ String() string }, want string) {
		t.Helper()
		if got.String() != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	f(point.PlacementID(0xbeef), "000000000000beef")
	f(point.Serial{Epoch: 7, Seq: 9}, "7/9")
	f(point.SegmentID{Epoch: 7, Seq: 9}, "7-9")
	f(point.All, "all")
	f(point.One, "one")
	f(point.Received, "received")
	f(point.Level(9), "level(9)")
	if !(point.SegmentID{}).IsZero() || (point.SegmentID{Seq: 1}).IsZero() {
		t.Error("only the zero segment id is zero")
	}
	var zero point.Level
	if zero != point.All {
		t.Error("the default level is not all")
	}
}

func TestStaleMarkerIsOneNaNOfMany(t *testing.T) {
	if !point.IsStale(math.Float64frombits(point.StaleNaN)) || point.IsStale(math.NaN()) || point.IsStale(0) {
		t.Error("stale is decided by the bits")
	}
}

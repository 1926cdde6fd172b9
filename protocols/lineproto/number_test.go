package lineproto

import (
	"fmt"
	"math"
	"math/rand"
	"strconv"
	"testing"
)

// readNumber reads a number the way entries do.
func readNumber(s string) (v float64, why string) {
	text := []byte(s + ",rest")
	if v, end, ok := number(text, 0); ok && end == len(s) {
		return v, ""
	}
	return parseValue([]byte(s))
}

func TestValues(t *testing.T) {
	f := func(s string, want float64) {
		t.Helper()
		if got, why := readNumber(s); why != "" || math.Float64bits(got) != math.Float64bits(want) {
			t.Errorf("%s: %v %s, want %v", s, got, why, want)
		}
	}
	f("0", 0)
	f("-0", math.Copysign(0, -1))
	f("-0.0", math.Copysign(0, -1))
	f("-0i", 0)
	f("1", 1)
	f("1.", 1)
	f(".5", 0.5)
	f("-.5", -0.5)
	f("1e3", 1000)
	f("1E-3", 0.001)
	f("1e+3", 1000)
	f("0.1", 0.1)
	f("0.3", 0.3)
	f("123456789.123456789", 123456789.123456789)
	f("9007199254740993", 9007199254740992) // 2^53+1: to even
	f("9007199254740993.0", 9007199254740992)
	f("1.7976931348623157e308", math.MaxFloat64)
	f("4.9406564584124654e-324", math.SmallestNonzeroFloat64)
	f("00000000000000000000000001", 1)
	f("0.000000000000000000000000000001", 1e-30)
	f("9223372036854775807i", math.MaxInt64)
	f("-9223372036854775808i", math.MinInt64)
	f("18446744073709551615u", math.MaxUint64)
	f("00000000000000000000042i", 42)
	f("t", 1)
	f("T", 1)
	f("true", 1)
	f("True", 1)
	f("TRUE", 1)
	f("f", 0)
	f("F", 0)
	f("false", 0)
	f("False", 0)
	f("FALSE", 0)
}

func TestBadValues(t *testing.T) {
	for _, s := range []string{
		"", "-", ".", "-.", "i", "u", "-i", "1.5i", "1.5u", "-1u", "-0u", "1e", "1e999", "-1e999", "NaN", "nan", "Inf", "-Inf", "+1",
		"9223372036854775808i", "-9223372036854775809i", "18446744073709551616u", "1ii", "1iu", "1 ", "0x", "1_0", "0x1p4", "0x10", "tRUE", "tr",
		"yes", "1f", "1\t", "\x00", "é", "1-2", "--1", "12\"3",
	} {
		if v, why := readNumber(s); why == "" {
			t.Errorf("%q was read as %v", s, v)
		}
	}
}

// Every decimal must be the float64 nearest to it: a value that is one bit off is another value.
func TestDecimalsAreCorrectlyRounded(t *testing.T) {
	rng := rand.New(rand.NewSource(7))
	check := func(s string) {
		want, err := strconv.ParseFloat(s, 64)
		got, why := readNumber(s)
		if (err == nil) != (why == "") || err == nil && math.Float64bits(got) != math.Float64bits(want) {
			t.Fatalf("%s: %v (%s), want %v", s, got, why, want)
		}
	}
	for range 200_000 {
		check(strconv.FormatFloat(rng.NormFloat64()*math.Pow(10, float64(rng.Intn(20)-8)), 'f', rng.Intn(20), 64))
		check(fmt.Sprintf("%d.%0*d", rng.Int63()>>rng.Intn(63), 1+rng.Intn(20), rng.Int63()>>rng.Intn(63)))
		check(strconv.FormatFloat(math.Float64frombits(rng.Uint64()&^(1<<62)), 'g', -1, 64))
	}
}

func TestTimesReadLikeParseInt(t *testing.T) {
	rng := rand.New(rand.NewSource(8))
	check := func(s string) {
		want, err := strconv.ParseInt(s, 10, 64)
		got, ok := parseTime([]byte(s))
		if ok != (err == nil) || ok && got != want {
			t.Fatalf("%q: %d %v, want %d %v", s, got, ok, want, err)
		}
	}
	for _, s := range []string{"", "-", "0", "-0", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
		"-9223372036854775809", "9999999999999999999", "00000000000000000000001", "1-1", "--1", "12345678", "1234567-", "-12345678"} {
		check(s)
	}
	for range 200_000 {
		s := []byte(strconv.FormatInt(rng.Int63()>>rng.Intn(63), 10))
		check(string(s))
		s[rng.Intn(len(s))] = byte(rng.Intn(256))
		if c := string(s); c[0] != '+' { // ParseInt accepts a plus, the scanner never hands one over
			check(c)
		}
	}
}

func TestPrecisions(t *testing.T) {
	f := func(p Precision, in, want int64, fits bool) {
		t.Helper()
		if got, ok := p.nanos(in); ok != fits || ok && got != want {
			t.Errorf("precision %d: %d is %d %v, want %d %v", p, in, got, ok, want, fits)
		}
	}
	f(Nanosecond, math.MinInt64, math.MinInt64, true)
	f(Microsecond, 7, 7000, true)
	f(Millisecond, -7, -7_000_000, true)
	f(Second, 9223372036, 9223372036000000000, true)
	f(Second, 9223372037, 0, false)
	f(Second, -9223372036, -9223372036000000000, true)
	f(Second, -9223372037, 0, false)
	f(Minute, 2, 120_000_000_000, true)
	f(Hour, 2562047, 2562047*3600*1_000_000_000, true)
	f(Hour, 2562048, 0, false)
	f(Auto, 4_999_999_999, 4_999_999_999e9, true)
	f(Auto, 5_000_000_000, 5_000_000_000e6, true)
	f(Auto, 4_999_999_999_999, 4_999_999_999_999e6, true)
	f(Auto, 5_000_000_000_000, 5_000_000_000_000e3, true)
	f(Auto, 4_999_999_999_999_999, 4_999_999_999_999_999e3, true)
	f(Auto, 5_000_000_000_000_000, 5_000_000_000_000_000, true)
	f(Auto, -1, -1_000_000_000, true)
	f(Auto, -5_000_000_000, -5_000_000_000e6, true)
	f(Auto, math.MinInt64, math.MinInt64, true)

	g := func(p Precision, in, want int64) {
		t.Helper()
		if got := p.Floor(in); got != want {
			t.Errorf("precision %d: floor(%d) = %d, want %d", p, in, got, want)
		}
	}
	g(Nanosecond, 1234567890, 1234567890)
	g(Second, 1234567890, 1000000000)
	g(Second, -1, -1000000000)
	g(Second, math.MinInt64, math.MinInt64)
	g(Auto, 1234567890, 1234567890)
	g(Minute, 119e9, 60e9)
}

func TestPrecisionNames(t *testing.T) {
	f := func(fl Flavour, s string, want Precision, wantErr string) {
		t.Helper()
		got, err := fl.Precision(s)
		if wantErr == "" && (err != nil || got != want) || wantErr != "" && (err == nil || err.Error() != wantErr) {
			t.Errorf("flavour %d, %q: %d %v", fl, s, got, err)
		}
	}
	for s, want := range map[string]Precision{"": Nanosecond, "n": Nanosecond, "ns": Nanosecond, "u": Microsecond, "us": Microsecond,
		"ms": Millisecond, "s": Second, "m": Minute, "h": Hour} {
		f(V1, s, want, "")
	}
	f(V1, "x", 0, `invalid precision "x" (use n, u, ms, s, m or h)`)
	f(V2, "", Nanosecond, "")
	f(V2, "ms", Millisecond, "")
	f(V2, "m", 0, `invalid precision "m"; valid precision units are ns, us, ms, and s`)
	f(V3, "", Auto, "")
	f(V3, "auto", Auto, "")
	f(V3, "second", Second, "")
	f(V3, "microsecond", Microsecond, "")
	f(V3, "h", 0, `invalid precision "h" (use auto, nanosecond, microsecond, millisecond or second)`)
}

package lineproto

import (
	"encoding/binary"
	"math"
	"strconv"
)

// pow10 holds the powers of ten that a float64 holds exactly.
var pow10 = [...]float64{
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

// digitsMax is the number of digits that always fit in 63 bits.
const digitsMax = 18

// number reads a plain number at p: an integer with suffix i or u, or a decimal without exponent, of at most 18 digits.
// ok is false for everything else, good or bad, which is left to value.
//
// A decimal m/10^k is exact after one division where m and 10^k are float64s exactly (W. D. Clinger, How to read
// floating point numbers accurately, 1990): m ≤ 2^53 and k ≤ 22; k is below 19 here.
func number(s []byte, p int) (v float64, end int, ok bool) {
	i := p
	neg := i < len(s) && s[i] == '-'
	if neg {
		i++
	}
	start := i
	var m uint64
	for i < len(s) && s[i]-'0' < 10 {
		m = m*10 + uint64(s[i]-'0')
		i++
	}
	digits := i - start
	if i == len(s) || s[i] != '.' {
		if digits == 0 || digits > digitsMax {
			return 0, p, false
		}
		if i < len(s) && (s[i] == 'i' || s[i] == 'u' && !neg) {
			i++
			if neg {
				m = -m
			}
			return float64(int64(m)), i, endsValue(s, i)
		}
		if m > 1<<53 {
			return 0, p, false
		}
		v = float64(m)
	} else {
		i++
		point := i
		for i < len(s) && s[i]-'0' < 10 {
			m = m*10 + uint64(s[i]-'0')
			i++
		}
		frac := i - point
		if digits += frac; digits == 0 || digits > digitsMax || m > 1<<53 {
			return 0, p, false
		}
		v = float64(m) / pow10[frac]
	}
	if neg {
		v = -v
	}
	return v, i, endsValue(s, i)
}

func endsValue(s []byte, i int) bool { return i == len(s) || valueStops[s[i]] }

var valueStops = [256]bool{',': true, ' ': true, '\n': true, '\r': true}

// valueEnd finds the end of a value that is no string.
func valueEnd(s []byte, p int) int {
	for !endsValue(s, p) {
		p++
	}
	return p
}

// parseValue reads any value that is no string; why is "" or the mistake. Integers beyond 2^53 are rounded to the
// nearest float64.
func parseValue(token []byte) (v float64, why string) {
	if len(token) == 0 {
		return 0, "no value after the field's name"
	}
	switch c := token[0]; {
	case c == 't', c == 'T', c == 'f', c == 'F':
		return parseBool(token)
	case c == '-', c == '.', c-'0' < 10:
		return parseNumber(token)
	}
	return 0, "the value is neither a number nor a boolean nor a string in quotes:"
}

func parseBool(token []byte) (v float64, why string) {
	switch string(token) {
	case "t", "T", "true", "True", "TRUE":
		return 1, ""
	case "f", "F", "false", "False", "FALSE":
		return 0, ""
	}
	return 0, "invalid boolean"
}

const notDecimal = "not a decimal number:"

// decimal reports whether only bytes of a decimal number occur. strconv reads more, as a Go compiler does: 0x1p4, 1_000.
func decimal(token []byte) bool {
	for _, c := range token {
		if c-'0' >= 10 && c != '.' && c != '-' && c != '+' && c|0x20 != 'e' {
			return false
		}
	}
	return true
}

func parseNumber(token []byte) (v float64, why string) {
	body := token[:len(token)-1]
	var err error
	switch token[len(token)-1] {
	case 'i':
		var n int64
		n, err = strconv.ParseInt(string(body), 10, 64)
		v, why = float64(n), "invalid integer, or beyond 64 bits:"
	case 'u':
		var n uint64
		n, err = strconv.ParseUint(string(body), 10, 64)
		v, why = float64(n), "invalid unsigned integer, or beyond 64 bits:"
	default:
		if !decimal(token) {
			return 0, notDecimal
		}
		v, err = strconv.ParseFloat(string(token), 64)
		why = "invalid number, or beyond the range of a float:"
	}
	if err != nil || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0, why
	}
	return v, ""
}

// parseTime reads the digits of a timestamp.
func parseTime(token []byte) (t int64, ok bool) {
	if len(token) == 0 || len(token) > digitsMax+1 || token[0] == '-' {
		n, err := strconv.ParseInt(string(token), 10, 64)
		return n, err == nil
	}
	var m uint64 // 19 digits fit in 64 bits, but not always in 63
	for len(token) >= 8 {
		n, ok := eightDigits(binary.LittleEndian.Uint64(token))
		if !ok {
			return 0, false
		}
		m = m*1e8 + n
		token = token[8:]
	}
	for _, c := range token {
		if c-'0' >= 10 {
			return 0, false
		}
		m = m*10 + uint64(c-'0')
	}
	return int64(m), m <= math.MaxInt64
}

// eightDigits reads eight ASCII digits, the first in the lowest byte, by adding neighbours: bytes to pairs, pairs to
// fours, fours to eight. It needs 3 multiplications where a loop needs 8 dependent ones.
func eightDigits(x uint64) (n uint64, ok bool) {
	const high, zeros = 0x8080808080808080, 0x3030303030303030
	x ^= zeros // digits become 0…9, everything else becomes more
	if (x|(x+0x7676767676767676))&high != 0 {
		return 0, false
	}
	x = x*10 + x>>8
	x = (x & 0x00ff00ff00ff00ff * (1 + 100<<16)) >> 16
	return (x & 0x0000ffff0000ffff * (1 + 10000<<32)) >> 32, true
}

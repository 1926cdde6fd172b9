package query

import (
	"math"
	"regexp/syntax"
	"strings"

	"github.com/prometheus/prometheus/util/strutil"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// regexStepsMax bounds the steps that repetitions in the regular expressions of a query stand for. (a{1000}){1000} has 14 bytes,
// and 40 MB to compile, which the parser does; ten in one selector are ten times as much.
const regexStepsMax = 20_000

// boundRegexes checks the strings of a query against regexStepsMax: each may be a regular expression. The error is Invalid.
func boundRegexes(text string) error {
	if n, where := countRepeats(text); n > regexStepsMax {
		return fault.Errorf(fault.Invalid, "the regular expression %s repeats so much that it stands for more than %d steps; repeat less", short(where), regexStepsMax)
	}
	return nil
}

// BoundRegex checks one regular expression that comes without a query against regexStepsMax. The error is Invalid.
func BoundRegex(text string) error {
	if re, err := syntax.Parse(text, syntax.Perl|syntax.DotNL); err == nil && regexSteps(re)-len(text) > regexStepsMax {
		return fault.Errorf(fault.Invalid, "the regular expression %s repeats so much that it stands for more than %d steps; repeat less", short(text), regexStepsMax)
	}
	return nil
}

// repeats is how many steps repetitions in a query stand for.
func repeats(text string) int {
	n, _ := countRepeats(text)
	return n
}

// countRepeats counts until there are too many, and reports where.
func countRepeats(text string) (steps int, where string) {
	for i := 0; i < len(text); {
		switch text[i] {
		case '"', '\'', '`':
			end := afterString(text, i)
			if steps += repeated(text[i:end]); steps > regexStepsMax {
				return steps, text[i:end]
			}
			i = end
		case '#':
			i = after(text, i, '\n')
		default:
			i++
		}
	}
	return steps, ""
}

func short(s string) string {
	if len(s) > excerptMax {
		return s[:excerptMax] + "…"
	}
	return s
}

// repeated is how many steps a quoted string has as a regular expression beyond those that it is written with; 0 if it
// is no regular expression or repeats nothing.
func repeated(quoted string) int {
	if !strings.Contains(quoted, "{") {
		return 0
	}
	s, err := strutil.Unquote(quoted)
	if err != nil {
		return 0
	}
	re, err := syntax.Parse(s, syntax.Perl|syntax.DotNL)
	if err != nil {
		return 0
	}
	return max(0, regexSteps(re)-len(s))
}

// regexSteps is about how many instructions an expression compiles to.
func regexSteps(re *syntax.Regexp) int {
	n := 1
	for _, sub := range re.Sub {
		n = min(n+regexSteps(sub), math.MaxInt32)
	}
	switch re.Op {
	case syntax.OpLiteral:
		n += len(re.Rune)
	case syntax.OpRepeat:
		n *= max(1, re.Min, re.Max)
	}
	return min(n, math.MaxInt32)
}

package query

import (
	"math"
	"regexp/syntax"
	"strings"

	"github.com/prometheus/prometheus/util/strutil"

	"github.com/spillwaydb/spillway/protocols/fault"
)

const (
	// regexStepsMax bounds the steps that repetitions in the regular expressions of a query stand for. (a{1000}){1000} has 14 bytes,
	// and 40 MB to compile, which the parser does; ten in one selector are ten times as much.
	regexStepsMax = 20_000
	// regexGroupsBytesMax bounds the memory that the regular expressions of a query need for the ends of their groups. The matcher keeps both ends
	// of each group for each step that it may be at, and keeps that memory for the next match: 10,000 groups such as (a|b)? needed 3 GB. 500 of
	// them may stand in a query.
	regexGroupsBytesMax = 16 << 20
	groupBytes          = 16
	// regexClassesMax bounds the classes of Unicode, as \pL, that they name: three bytes of text for hundreds of ranges, which parser, printer and
	// program hold. 5,000 of them needed 200 MB and two seconds of a processor.
	regexClassesMax = 200
	classBytes      = 40 << 10
)

// regexCost is what regular expressions cost beyond their text.
type regexCost struct {
	repeats int   // steps that repetitions stand for
	groups  int64 // bytes for the ends of groups in a match
	classes int   // of Unicode
}

// bytes is the memory that they need.
func (c regexCost) bytes() int64 {
	return repeatsBytes*int64(c.repeats) + c.groups + classBytes*int64(c.classes)
}

func (c *regexCost) add(d regexCost) {
	c.repeats, c.groups, c.classes = c.repeats+d.repeats, c.groups+d.groups, c.classes+d.classes
}

// check says whether a query may have regular expressions of this cost, of which text is the last. The error is Invalid.
func (c regexCost) check(text string) error {
	if c.repeats > regexStepsMax {
		return fault.Errorf(fault.Invalid, "the regular expression %s repeats so much that it stands for more than %d steps; repeat less", short(text), regexStepsMax)
	}
	if c.groups > regexGroupsBytesMax {
		return fault.Errorf(fault.Invalid, "the regular expression %s has so many groups that a match needs more than %d MiB; write (?:…) for groups that are not used", short(text), regexGroupsBytesMax>>20)
	}
	if c.classes > regexClassesMax {
		return fault.Errorf(fault.Invalid, "the regular expression %s names more than %d classes of Unicode, as \\pL; name fewer", short(text), regexClassesMax)
	}
	return nil
}

// boundRegexes checks the strings of a query: each may be a regular expression, and all count together. The error is Invalid.
func boundRegexes(text string) error {
	_, err := costOfRegexes(text)
	return err
}

// BoundRegexes checks regular expressions that come without a query, all together. The error is Invalid.
func BoundRegexes(texts ...string) error {
	var sum regexCost
	for _, text := range texts {
		sum.add(costOfRegex(text))
		if err := sum.check(text); err != nil {
			return err
		}
	}
	return nil
}

// costOfRegexes adds up what the strings of a query cost, until that is too much. The error is Invalid.
func costOfRegexes(text string) (sum regexCost, err error) {
	for i := 0; i < len(text); {
		switch text[i] {
		case '"', '\'', '`':
			end := afterString(text, i)
			if quoted := text[i:end]; strings.ContainsAny(quoted, `{(\`) { // of a string, "\x7b" is a brace, too
				if s, err := strutil.Unquote(quoted); err == nil {
					sum.add(costOfRegex(s))
				}
				if err := sum.check(quoted); err != nil {
					return sum, err
				}
			}
			i = end
		case '#':
			i = after(text, i, '\n')
		default:
			i++
		}
	}
	return sum, nil
}

func short(s string) string {
	if len(s) > excerptMax {
		return s[:excerptMax] + "…"
	}
	return s
}

// costOfRegex is nothing for what is no regular expression.
func costOfRegex(s string) (c regexCost) {
	if c.classes = countClasses(s); c.classes > regexClassesMax || !strings.ContainsAny(s, "{(") {
		return c
	}
	re, err := syntax.Parse(s, syntax.Perl|syntax.DotNL)
	if err != nil {
		return c
	}
	steps := regexSteps(re)
	c.repeats, c.groups = max(0, steps-len(s)), groupBytes*int64(re.MaxCap())*int64(steps)
	return c
}

// countClasses counts \p and \P, but not those whose backslash is escaped.
func countClasses(s string) (n int) {
	for i := 0; i+1 < len(s); i++ {
		if s[i] != '\\' {
			continue
		}
		if i++; s[i] == 'p' || s[i] == 'P' {
			n++
		}
	}
	return n
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

package query

import (
	"math"
	"regexp/syntax"
	"strings"

	"github.com/prometheus/prometheus/util/strutil"

	"github.com/spillwaydb/spillway/protocols/fault"
)

const (
	// regexStepsMax bounds the steps that repetitions in the regular expressions of a query stand for. The parser compiles them: (a{1000}){1000} has 14 bytes
	// and needs 40 MB, ten of them in one selector ten times as much.
	regexStepsMax = 20_000
	// regexGroupsBytesMax bounds the memory that the regular expressions of a query need for the ends of their groups. The matcher keeps both ends
	// of each group for each step that it may be at, and keeps that memory for the next match: 10,000 groups such as (a|b)? needed 3 GB. 700 of
	// them may stand in a query, or 1,000 names in a group each.
	regexGroupsBytesMax = 16 << 20
	groupBytes          = 16
	// regexClassesMax bounds the classes of Unicode, as \pL, that they name: three bytes of text for hundreds of ranges, which parser, printer and
	// program hold. 5,000 of them needed 200 MB and two seconds of a processor.
	regexClassesMax = 200
	classBytes      = 40 << 10
	// The matcher may hold a class once for each repetition, in programs of up to heldSteps: \pL{950} needs 8 MB. runeBytes is for each end of a range.
	heldSteps = 1000
	runeBytes = 6
)

// regexCost is what regular expressions cost beyond their text.
type regexCost struct {
	repeats int   // steps that repetitions stand for
	groups  int64 // bytes for the ends of groups in a match
	classes int   // of Unicode
	ranges  int64 // bytes for classes, once for each repetition
}

// bytes is the memory that they need.
func (c regexCost) bytes() int64 {
	return repeatsBytes*int64(c.repeats) + c.groups + classBytes*int64(c.classes) + c.ranges
}

func (c *regexCost) add(d regexCost) {
	c.repeats, c.groups, c.classes, c.ranges = c.repeats+d.repeats, c.groups+d.groups, c.classes+d.classes, c.ranges+d.ranges
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

// BoundRegexes checks regular expressions that come without a query, all together, and returns the memory that they need beyond that of their text.
// The error is Invalid.
func BoundRegexes(texts ...string) (bytes int64, err error) {
	var sum regexCost
	for _, text := range texts {
		sum.add(costOfRegex(text))
		if err := sum.check(text); err != nil {
			return 0, err
		}
	}
	return sum.bytes(), nil
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

// costOfRegex is zero for a text that is no regular expression.
func costOfRegex(s string) (c regexCost) {
	if c.classes = countClasses(s); c.classes > regexClassesMax || !strings.ContainsAny(s, "{(") {
		return c
	}
	starts := 1 // matches begin at the begin of a text
	re, err := syntax.Parse(s, syntax.Perl|syntax.DotNL)
	if err != nil {
		// x)?(y is none, but it is one as label_replace writes it, and in x)|(y the second part matches anywhere.
		if re, err = syntax.Parse("^(?s:"+s+")$", syntax.Perl); err != nil {
			return c
		}
		starts = math.MaxInt32
	}
	c.repeats = max(0, regexSteps(re)-len(s))
	at, _ := regexPlaces(re, starts)
	c.groups = groupBytes * int64(re.MaxCap()) * int64(at)
	if c.repeats > 0 {
		sum, largest := classRunes(re)
		c.ranges = runeBytes * min(sum, heldSteps*largest)
	}
	return c
}

// regexPlaces is at how many steps a match may be at once that begins at so many places of a text, and at how many it may end: of 1,000 names beside
// each other it is at one step of each.
func regexPlaces(re *syntax.Regexp, starts int) (at, ends int) {
	switch re.Op {
	case syntax.OpLiteral:
		return min(len(re.Rune), starts), starts
	case syntax.OpCapture:
		return regexPlaces(re.Sub[0], starts)
	case syntax.OpConcat:
		ends = starts
		for _, sub := range re.Sub {
			var n int
			n, ends = regexPlaces(sub, ends)
			at = min(at+n, math.MaxInt32)
		}
		return at, ends
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			n, m := regexPlaces(sub, starts)
			at, ends = min(at+n, math.MaxInt32), min(ends+m, math.MaxInt32)
		}
		return at, ends
	case syntax.OpQuest:
		at, ends = regexPlaces(re.Sub[0], starts)
		return min(at+1, math.MaxInt32), min(ends+starts, math.MaxInt32)
	case syntax.OpStar, syntax.OpPlus, syntax.OpRepeat:
		return regexSteps(re), math.MaxInt32
	}
	return 1, starts
}

// classRunes is how many ends the ranges of classes have, each class once for each repetition, and those of the largest class.
func classRunes(re *syntax.Regexp) (sum, largest int64) {
	if re.Op == syntax.OpCharClass {
		return int64(len(re.Rune)), int64(len(re.Rune))
	}
	for _, sub := range re.Sub {
		n, l := classRunes(sub)
		sum, largest = min(sum+n, math.MaxInt32), max(largest, l)
	}
	if re.Op == syntax.OpRepeat {
		sum = min(sum*int64(max(1, re.Min, re.Max)), math.MaxInt32)
	}
	return sum, largest
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

package query

import (
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// How deep an expression may nest. Parser, printer and engine walk its tree by recursion; their cost is quadratic in the depth, the printer's cubic, and no
// time-out ends a parse. Measured on one core: 10,000 operators need 25 s, 5,000 need 1.6 s; printing 500 brackets needs 0.2 s, printing 5,000 more than 100 s;
// 4 MB of minus signs used 2 GB. No dashboard nests that deep (2026-11-21).
const (
	bracketsMax  = 500
	operatorsMax = 3000
	// listMax bounds the labels or arguments that stand side by side. Joins need the square of their labels for every series: group_left with
	// 20,000 of them and 5,000 series needed more than a minute (2026-11-24).
	listMax = 1000
)

// shallowParser is a parser that refuses texts which would nest too deep, before they cost anything.
type shallowParser struct{ parser.Parser }

func (p shallowParser) ParseExpr(text string) (parser.Expr, error) {
	if err := bounded(text); err != nil {
		return nil, err
	}
	return p.Parser.ParseExpr(text)
}

func (p shallowParser) ParseMetricSelector(text string) ([]*labels.Matcher, error) {
	if err := bounded(text); err != nil {
		return nil, err
	}
	return p.Parser.ParseMetricSelector(text)
}

func (p shallowParser) ParseMetricSelectors(texts []string) ([][]*labels.Matcher, error) {
	if len(texts) > selectorsMax {
		return nil, fault.Errorf(fault.Invalid, "%d selectors are more than %d; ask in several requests, or with one regular expression", len(texts), selectorsMax)
	}
	// Their regular expressions are compiled beside each other.
	if err := boundRegexes(strings.Join(texts, "\n")); err != nil {
		return nil, err
	}
	for _, text := range texts {
		if err := shallow(text); err != nil {
			return nil, err
		}
	}
	return p.Parser.ParseMetricSelectors(texts)
}

// selectorsMax is how many selectors a request may list: each is a separate look-up.
const selectorsMax = 1000

// bounded refuses texts that would cost too much to parse. The error is Invalid.
func bounded(text string) error {
	if err := shallow(text); err != nil {
		return err
	}
	return boundRegexes(text)
}

// shallow checks a text against the limits in one pass: strings, comments and the text in braces do not nest. Every
// operator counts, since a chain is a tree as deep as it is long. The error is Invalid.
func shallow(text string) error {
	brackets, operators, list := 0, 0, 0
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '"' || c == '\'' || c == '`':
			i = afterString(text, i)
		case c == '#':
			i = after(text, i, '\n')
		case c == '{':
			i = afterBraces(text, i)
		case c == '(' || c == '[':
			list = 0
			if brackets++; c == '[' {
				operators++ // of a subquery, perhaps
			}
			i++
		case c == ')' || c == ']':
			brackets--
			list = 0
			i++
		case c == ',':
			list++
			i++
		case strings.IndexByte("+-*/%^", c) >= 0:
			operators++
			i++
		case strings.IndexByte("=!<>~", c) >= 0:
			operators++
			for i++; i < len(text) && strings.IndexByte("=~/", text[i]) >= 0; i++ {
			}
		case isWordByte(c):
			from := i
			for i++; i < len(text) && isWordByte(text[i]); i++ {
			}
			switch strings.ToLower(text[from:min(i, from+len("unless")+1)]) {
			case "and", "or", "unless", "atan2":
				operators++
			}
		default:
			i++
		}
		if brackets > bracketsMax {
			return fault.Errorf(fault.Invalid, "the expression has more than %d brackets within each other", bracketsMax)
		}
		if list >= listMax {
			return fault.Errorf(fault.Invalid, "the expression lists more than %d labels or arguments side by side", listMax)
		}
		if operators > operatorsMax {
			return fault.Errorf(fault.Invalid, "the expression has more than %d operators; ask in several queries, or with one regular expression", operatorsMax)
		}
	}
	return nil
}

func isWordByte(c byte) bool {
	return c == '_' || c == ':' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// after returns the place behind the next c.
func after(text string, i int, c byte) int {
	if n := strings.IndexByte(text[i:], c); n >= 0 {
		return i + n + 1
	}
	return len(text)
}

// afterString returns the place behind the string that begins at i. Only those in backquotes have no escapes.
func afterString(text string, i int) int {
	quote := text[i]
	if quote == '`' {
		return after(text, i+1, quote)
	}
	for i++; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case quote:
			return i + 1
		}
	}
	return len(text)
}

// afterBraces returns the place behind the matchers that begin at i.
func afterBraces(text string, i int) int {
	for i++; i < len(text); {
		switch c := text[i]; c {
		case '"', '\'', '`':
			i = afterString(text, i)
		case '#':
			i = after(text, i, '\n')
		case '}':
			return i + 1
		default:
			i++
		}
	}
	return len(text)
}

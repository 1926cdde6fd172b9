package query

import (
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/spillwaydb/spillway/protocols/fault"
)

func nested(open string, n int, inner, closing string) string {
	return strings.Repeat(open, n) + inner + strings.Repeat(closing, n)
}

func TestAQueryThatNestsTooDeepCostsNothing(t *testing.T) {
	p := shallowParser{parser.NewParser(parser.Options{})}
	const many = 1_000_000
	for name, text := range map[string]string{
		"brackets":     nested("(", many, "1", ")"),
		"calls":        nested("abs(", many, "a", ")"),
		"open only":    strings.Repeat("(", many),
		"signs":        strings.Repeat("-", many) + "1",
		"sums":         strings.Repeat("1+", many) + "1",
		"powers":       strings.Repeat("1^", many) + "1",
		"comparisons":  strings.Repeat("1==bool", many) + "1",
		"sets":         strings.Repeat("a or ", many) + "a",
		"SETS":         strings.Repeat("a UNLESS ", many) + "a",
		"arcs":         strings.Repeat("1 atan2 ", many) + "1",
		"subqueries":   "a" + strings.Repeat("[1m:1m]", many),
		"labels":       "sum by (" + strings.Repeat("a,", many) + "a) (a)",
		"joined":       "a * on () group_left (" + strings.Repeat("b, ", listMax) + "b) c",
		"arguments":    "max(" + strings.Repeat(",", many) + ")",
		"after text":   `"\"(" + '(' + ` + "`\\`" + strings.Repeat("+1", many),
		"after braces": `a{b="}"}` + strings.Repeat("+1", many),
	} {
		if _, err := p.ParseExpr(text); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %v, want Invalid", name, err)
		}
		if _, err := p.ParseMetricSelectors([]string{"a", text}); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s as a selector: %v, want Invalid", name, err)
		}
	}
}

func TestAQueryMayBeLong(t *testing.T) {
	p := shallowParser{parser.NewParser(parser.Options{})}
	for name, text := range map[string]string{
		"brackets":        nested("(", bracketsMax, "1", ")"),
		"operators":       strings.Repeat("1+", operatorsMax) + "1",
		"side by side":    strings.TrimSuffix(strings.Repeat("(a)/(b)-(c)+", 900), "+"),
		"regular":         `a{b=~"` + strings.TrimSuffix(strings.Repeat("x-y+z|", 100_000), "|") + `"}`,
		"a name":          `{"` + strings.Repeat("-(", 5000) + `"}`,
		"raw":             "a{b!=`" + strings.Repeat("(-", 5000) + "\\`}",
		"matchers":        "a{" + strings.TrimSuffix(strings.Repeat(`b!="(",`, 5000), ",") + "}",
		"comment":         "a # " + strings.Repeat("((--", 5000) + "\n + b",
		"matcher comment": "a{ # } " + strings.Repeat("((--", 5000) + "\n b='c'}",
		"words":           "sum by (" + strings.TrimSuffix(strings.Repeat("order, andy, ", listMax/2), ", ") + ") (a)",
	} {
		if _, err := p.ParseExpr(text); err != nil {
			t.Errorf("%s: %.200v", name, err)
		}
	}
}

package processtest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Chain is a query of selectors, functions, operators with numbers, and aggregations, over metrics m1 and m2 with a label i of 0 to 9.
type Chain struct {
	Expr             string
	Start, End, Step time.Duration // since the first row, of 45 minutes; step 0: at start alone
}

// RandomQuery is a chain, or several that each have other series.
func RandomQuery(rng *rand.Rand) Chain {
	q := randomChain(rng)
	n := rng.IntN(8) - 2
	if n < 2 {
		return q
	}
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(`label_replace(%s, "part", "%d", "", "")`, randomChain(rng).Expr, i)
	}
	q.Expr = strings.Join(parts, " or ")
	return q
}

func randomChain(rng *rand.Rand) Chain {
	q := Chain{Start: time.Duration(rng.IntN(2700)) * time.Second}
	if rng.IntN(4) > 0 {
		q.Step = time.Duration(1+rng.IntN(120)) * time.Second
		q.End = q.Start + time.Duration(rng.IntN(40))*q.Step
	}
	selector := pick(rng, "m1", "m1", "m2", `m1{i=~"[0-4]"}`, `{__name__=~"m."}`, `{__name__=~"m.",i="3"}`, "none")
	offset := pick(rng, "", "", "", " offset 90s", " offset -2m")
	inner := selector + offset
	if rng.IntN(4) > 0 {
		f := pick(rng, "rate", "increase", "delta", "irate", "max_over_time", "min_over_time", "sum_over_time", "avg_over_time", "count_over_time",
			"last_over_time", "stddev_over_time", "changes", "present_over_time")
		inner = f + "(" + selector + pick(rng, "[20s]", "[1m]", "[5m]", "[11m]") + offset + ")"
		if rng.IntN(10) == 0 {
			inner = "quantile_over_time(" + pick(rng, "0.5", "2") + ", " + selector + "[3m]" + offset + ")"
		}
	}
	groups := false // a ranking of groups picks among equal values by their order, which has no meaning
	for range rng.IntN(3) {
		kinds := 4
		if groups {
			kinds = 3
		}
		switch rng.IntN(kinds) {
		case 0:
			inner = "(" + inner + pick(rng, " * 3", " > 2", " / 7", " > bool 1", " <= 40") + ")"
		case 1:
			inner = pick(rng, "sum", "avg", "min", "max", "count", "group", "stddev", "stdvar") + pick(rng, "", " by (i)", " without (i)", " by (__name__, i)") + "(" + inner + ")"
			groups = true
		case 2:
			inner = pick(rng, "sum", "avg", "min", "max", "count") + pick(rng, "", " by (i)") + "(" + inner + ")"
			groups = true
		default:
			inner = pick(rng, "topk(2, ", "bottomk(1, ", "quantile(0.3, ") + inner + ")"
		}
	}
	q.Expr = inner
	return q
}

func pick(rng *rand.Rand, of ...string) string { return of[rng.IntN(len(of))] }

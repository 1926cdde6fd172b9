package query

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestOneAbsentDoesNotKeepAProcessorForHours: absent of a selector with 20,000 matchers cost half a second a step, 11,000 steps in a request.
func TestOneAbsentDoesNotKeepAProcessorForHours(t *testing.T) {
	r, err := New(Deps{Source: querytest.NewStore()}, Settings{})
	if err != nil {
		t.Fatal(err)
	}
	selector := func(n int) string {
		var b strings.Builder
		for i := range n - 1 {
			fmt.Fprintf(&b, `l%d="v",`, i)
		}
		return "up{" + b.String() + "}"
	}
	for text, refused := range map[string]bool{
		"absent(" + selector(absentMatchersMax) + ")":                        false,
		"absent(" + selector(absentMatchersMax+1) + ")":                      true,
		"sum(1 - absent((" + selector(20_000) + ")))":                        true,
		"absent_over_time(" + selector(20_000) + "[5m])":                     true,
		"max_over_time(absent(" + selector(20_000) + " @ 5)[1h:1m])":         true,
		"absent(sum(" + selector(20_000) + "))":                              false,
		"count(" + selector(20_000) + ")":                                    false,
		"absent(up) or absent_over_time(" + selector(1001) + "[1m] @ end())": true,
	} {
		_, err := r.Engine().NewRangeQuery(t.Context(), r.Table("default"), nil, text, time.Unix(0, 0), time.Unix(11_000, 0), time.Second)
		if refused != fault.Is(err, fault.Invalid) || !refused && err != nil {
			t.Errorf("%.40s…: %v", text, err)
		}
		if refused && (!strings.Contains(fmt.Sprint(err), "matchers") || len(fmt.Sprint(err)) > 500) {
			t.Errorf("%.40s…: the answer is %v", text, err)
		}
	}
}

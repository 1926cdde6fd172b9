package query

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

// Room for each series of a selector, in bytes, over an hour by 4 s: 901 steps of 16 bytes are 14416.
func TestRoom(t *testing.T) {
	p := parser.NewParser(parser.Options{})
	for text, want := range map[string]string{
		"a":                                 "{0 0 false false}",
		"rate(a[5m])":                       "{0 0 false false}",
		`label_replace(a, "b", "", "", "")`: "{0 0 false false}",
		"sum(a)":                            "{0 0 false false}",
		"sum by (b) (a)":                    "{14416 0 false false}",
		"sort(a)":                           "{14416 0 false false}",
		"a + 1":                             "{14416 0 false false}",
		"sum(a + 1)":                        "{14416 0 false false}",
		"abs(sort(a))":                      "{28832 0 false false}",
		"abs(abs(sort(a)))":                 "{28832 0 false false}",
		"abs(abs(sum(sort(a))))":            "{14416 0 false false}",
		"scalar(a) + 1":                     "{0 0 false false}",
		"topk(1e9, a)":                      "{14416 0 false false}",
		"topk(3, a)":                        "{14416 691968 false false}", // of three series, 16 times
		"topk by (b) (3, a)":                "{14416 0 false false}",
		"topk(3, a + 1)":                    "{28832 0 false false}",
		`count_values("v", a)`:              "{14416 0 true false}",
		`count_values("v", -a)`:             "{14416 0 true false}",
		`count_values by (b) ("v", a)`:      "{14416 0 true true}",
		`count_values("v", a + 1)`:          "{72080 0 false false}", // 4 + 1
		`count_values("v", rate(a[5m]))`:    "{57664 0 false false}",
		"max_over_time(sort(a)[1h:1s])":     "{80000 0 false false}", // 5,000 of 7,201 steps
		"max_over_time(a[1h:1s])":           "{0 0 false false}",
	} {
		expr, err := p.ParseExpr(text)
		if err != nil {
			t.Fatal(err)
		}
		rooms := roomsOf(&parser.EvalStmt{Expr: expr, Start: time.Unix(0, 0), End: time.Unix(3600, 0), Interval: 4 * time.Second}, time.Minute)
		if len(rooms) != 1 {
			t.Fatalf("%s: %v", text, rooms)
		}
		for _, got := range rooms {
			if fmt.Sprint(got) != want {
				t.Errorf("%s: %v, want %s", text, got, want)
			}
		}
	}
}

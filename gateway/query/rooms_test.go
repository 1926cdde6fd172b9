package query_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// topk over 20,000 series with three samples each used 1.6 GB in its first step: room for a point of each series at each of 5,000
// steps. The process was ended, and others' rows that were not flushed had to be replayed.
func TestMemoryOfOthersSurvivesShortSeriesOverManySteps(t *testing.T) {
	const memory = 32 << 20
	r, account := counted(t, crowd(t, 5_000), memory, query.Settings{ExperimentalFunctions: true})
	ask := func(text string) error {
		q, err := r.Engine().NewRangeQuery(t.Context(), r.Table("default"), nil, text, time.Unix(-5000, 0), time.Unix(2, 0), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		return q.Exec(t.Context()).Err
	}
	for _, text := range []string{
		"topk(1e9, miles)", "topk(1e9, miles * 1)", "bottomk by (boat) (1, miles * 1)", "limitk(1e9, miles)", `count_values("v", miles)`,
		`count_values("v", miles * time())`, "miles * on (boat) group_left miles", "miles or miles * 2", "sort(miles)", "miles and miles",
		`sum by (boat) (label_replace(miles, "a", "$1", "boat", "(.*)") or miles)`, "abs(sort(miles) or miles) > 0",
		`max_over_time((topk(1e9, miles * 1))[1h:1s])`, "scalar(count(sort(miles))) + sort(miles)",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := ask(text)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 2*memory {
			t.Errorf("%s took %d MiB in all", text, took>>20)
		}
		if !fault.Is(storageError(err), fault.TooLarge) {
			t.Errorf("%s: %v, want an error of its memory", text, err)
		}
		if used := account.Used(); used != 0 {
			t.Fatalf("%s: %d bytes are booked after the query", text, used)
		}
	}
	// What makes few series needs little room.
	for _, text := range []string{"count(miles)", "miles", `count_values("v", miles > bool 7)`,
		`count_values("v", miles < 9)`, `count_values("v", count_values("v", miles < 9))`} {
		if err := ask(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

package intake

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestRowsOfASmallTableDoNotWaitBehindALargeOne: hundreds of bodies of one table wait, and one of another is decoded at once,
// a second one in its turn.
func TestRowsOfASmallTableDoNotWaitBehindALargeOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := turns{most: 2}
		var mu sync.Mutex
		var order []string
		run := func(table string) {
			if err := s.enter(t.Context(), table); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, table)
			mu.Unlock()
			time.Sleep(time.Millisecond)
			s.leave(table)
		}
		for range 200 {
			go run("large")
		}
		synctest.Wait()
		for range 3 {
			go run("small")
		}
		synctest.Wait()
		mu.Lock()
		if got := len(order); got != 3 || order[2] != "small" {
			t.Fatalf("under way are %v", order)
		}
		mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		last := 0
		for i, table := range order {
			if table == "small" {
				last = i
			}
		}
		if len(order) != 203 || last > 8 {
			t.Errorf("of %d the last of the small table was number %d", len(order), last)
		}
		if len(s.tables) != 0 || len(s.order) != 0 || s.running != 0 {
			t.Errorf("left behind: %d tables, %d waiting, %d running", len(s.tables), len(s.order), s.running)
		}
	})
}

// TestTurnsAreBoundedAndNoneIsLost has many come, wait and leave at random.
func TestTurnsAreBoundedAndNoneIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := turns{most: 3}
		r := rand.New(rand.NewPCG(1, 2))
		var mu sync.Mutex
		running, by := 0, map[string]int{}
		var wg sync.WaitGroup
		left := 0
		for range 500 {
			table := strconv.Itoa(r.IntN(5))
			patience, begin, work := time.Duration(1+r.IntN(40))*time.Millisecond, time.Duration(r.IntN(300))*time.Millisecond, time.Duration(1+r.IntN(5))*time.Millisecond
			wg.Go(func() {
				time.Sleep(begin)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if err := s.enter(ctx, table); err != nil {
					if !fault.Is(err, fault.Unavailable) {
						t.Error(err)
					}
					mu.Lock()
					left++
					mu.Unlock()
					return
				}
				mu.Lock()
				running++
				by[table]++
				if running > 3+4 || running > 3 && by[table] > 3 {
					t.Errorf("%d run, of one table %d", running, by[table])
				}
				mu.Unlock()
				time.Sleep(work)
				mu.Lock()
				running--
				by[table]--
				mu.Unlock()
				s.leave(table)
			})
		}
		wg.Wait()
		if len(s.tables) != 0 || len(s.order) != 0 || s.running != 0 {
			t.Errorf("left behind: %d tables, %d waiting, %d running", len(s.tables), len(s.order), s.running)
		}
		if left == 0 || left == 500 {
			t.Errorf("%d of 500 lost patience", left)
		}
	})
}

package budget_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
)

const chunk = budget.ChunkBytes

func TestLoanGrowsInChunks(t *testing.T) {
	process := budget.New("process", 12*chunk)
	l, err := process.Borrow(t.Context(), 4*chunk)
	if err != nil {
		t.Fatal(err)
	}
	f := func(take, used int64) {
		t.Helper()
		if err := l.Take(take); err != nil {
			t.Error(err)
		}
		if got := process.Used(); got != used || l.Held() != used {
			t.Errorf("%d booked, %d held, want %d", got, l.Held(), used)
		}
	}
	f(0, chunk)
	f(chunk, chunk)
	f(1, 2*chunk)
	f(2*chunk, 4*chunk)
	if err := l.Take(chunk); !fault.Is(err, fault.TooLarge) {
		t.Error(err)
	}
	f(chunk-1, 4*chunk)
	if err := process.Reserve(6 * chunk); err != nil {
		t.Error(err)
	}
	l.Give(4 * chunk)
	if got := l.Held(); got != chunk {
		t.Errorf("%d held", got)
	}
	l.Close()
	l.Close()
	if got := process.Used(); got != 6*chunk {
		t.Errorf("%d booked after the end", got)
	}
	if err := l.Take(1); err == nil {
		t.Error("taken from a loan that is closed")
	}
}

func TestAPartGivesBackWhatItTook(t *testing.T) {
	l, err := budget.New("process", 12*chunk).Borrow(t.Context(), 4*chunk)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	kept, dropped := l.Part(), l.Part()
	for part, n := range map[*budget.Loan]int64{l: 1, kept: 20, dropped: 300} {
		if err := part.Take(n); err != nil {
			t.Error(err)
		}
	}
	dropped.Give(100)
	if l.Used() != 221 || kept.Used() != 20 || dropped.Used() != 200 {
		t.Errorf("%d bytes are booked, %d and %d of them in parts", l.Used(), kept.Used(), dropped.Used())
	}
	dropped.Close()
	dropped.Close()
	dropped.Give(200) // by a user that ended after it
	if err := dropped.Take(1); err == nil || l.Used() != 21 {
		t.Errorf("taken from a part that is closed: %v, %d bytes are booked", err, l.Used())
	}
	if err := kept.TakeSoon(4 * chunk); !fault.Is(err, fault.TooLarge) || kept.Used() != 20 {
		t.Errorf("more than the loan may have: %v, %d bytes are booked", err, kept.Used())
	}
	if (*budget.Loan)(nil).Part() != nil {
		t.Error("no loan has a part")
	}
}

// Large loans leave something for small ones, whatever they want.
func TestLoansLeaveRoomForASmallOne(t *testing.T) {
	process := budget.New("process", 90*chunk)
	var large []*budget.Loan
	for n := 1; n <= 5; n++ {
		l, err := process.Borrow(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		large = append(large, l)
		for l.Take(chunk) == nil {
		}
		small, err := process.Borrow(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := small.Take(chunk); err != nil {
			t.Errorf("beside %d large ones: %v", n, err)
		}
		small.Close()
	}
	if got := large[0].Held(); got != 50*chunk {
		t.Errorf("the first holds %d chunks, want two thirds of five sixths of 90", got/chunk)
	}
	for _, l := range large {
		l.Close()
	}
	if got := process.Used(); got != 0 {
		t.Errorf("%d still booked", got)
	}
}

// TestASmallQueryIsNotRefusedInAFloodOfHeavyOnes: loans that want all memory and ask again at once used what a
// small one needed for its second page.
func TestASmallQueryIsNotRefusedInAFloodOfHeavyOnes(t *testing.T) {
	process := budget.New("process", 192*chunk)
	queries, err := process.Child("queries", budget.Share{Floor: 64 * chunk, Max: 192 * chunk})
	if err != nil {
		t.Fatal(err)
	}
	var others sync.WaitGroup
	stop := make(chan struct{})
	for range 20 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				l, err := queries.Borrow(t.Context(), 0)
				if err != nil {
					t.Error(err)
					return
				}
				for l.TakeSoon(chunk/3) == nil {
					runtime.Gosched()
				}
				l.Close()
			}
		})
	}
	for range 300 {
		l, err := queries.Borrow(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		for l.Used() < budget.SmallLoan-chunk {
			if err := l.TakeSoon(chunk / 2); err != nil {
				t.Fatalf("a loan of %d bytes: %v", l.Used(), err)
			}
		}
		l.Close()
	}
	close(stop)
	others.Wait()
	if got := queries.Used(); got != 0 {
		t.Errorf("%d still booked", got)
	}
}

// TestSmallLoansThatWaitForEachOtherEnd: all hold memory that the others wait for. Each is refused after a while, or as its
// request ends, and nothing is left booked or waiting.
func TestSmallLoansThatWaitForEachOtherEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		process := budget.New("process", 12*chunk)
		if err := process.Reserve(6 * chunk); err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		var refused atomic.Int64
		for i := range 3 {
			of := t.Context()
			if i == 0 {
				of = ctx
			}
			l, err := process.Borrow(of, 0)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				defer l.Close()
				for range 3 {
					if err := l.TakeSoon(chunk); err != nil {
						if !fault.Is(err, fault.Throttled) {
							t.Error(err)
						}
						refused.Add(1)
						return
					}
					time.Sleep(time.Millisecond) // the others book too
				}
			}()
		}
		time.Sleep(time.Second)
		if n := refused.Load(); n != 0 || process.Used() != 12*chunk {
			t.Fatalf("%d were refused at once, %d chunks are booked", n, process.Used()/chunk)
		}
		leave()
		time.Sleep(time.Minute)
		if got := process.Used(); got != 6*chunk {
			t.Errorf("%d still booked", got)
		}
		if n := refused.Load(); n == 0 || n == 3 {
			t.Errorf("%d of 3 were refused: one that ends makes room for another", n)
		}
	})
}

func TestALoanLargerThanThereCanBeIsTooLarge(t *testing.T) {
	process := budget.New("process", 90*chunk)
	l, err := process.Borrow(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Take(50*chunk + 1); !fault.Is(err, fault.TooLarge) {
		t.Error(err)
	}
	other, err := process.Borrow(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Take(40 * chunk); err != nil {
		t.Error(err)
	}
	if err := l.Take(40 * chunk); !fault.Is(err, fault.Throttled) {
		t.Error(err)
	}
}

// Spare memory does not turn a small query into a large one when memory is short.
func TestSpareIsTakenOnlyOfPlenty(t *testing.T) {
	process := budget.New("process", 12*chunk)
	l, err := process.Borrow(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.TakeSpare(2 * chunk); err != nil {
		t.Error(err)
	}
	if err := process.Reserve(5 * chunk); err != nil {
		t.Fatal(err)
	}
	if err := l.TakeSpare(1); !fault.Is(err, fault.Throttled) || l.Used() != 2*chunk {
		t.Error(err)
	}
	if err := l.Take(chunk); err != nil {
		t.Error(err)
	}
}

func TestNoLoanTakesAnything(t *testing.T) {
	var l *budget.Loan
	if err := l.TakeSpare(1 << 60); err != nil {
		t.Error(err)
	}
	if err := l.Take(1 << 60); err != nil {
		t.Error(err)
	}
	l.Give(1)
	l.Close()
}

// A loan that many use at once never holds less than they booked, and releases everything.
func TestLoansBookWhatIsTaken(t *testing.T) {
	process := budget.New("process", 64*chunk)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			l, err := process.Borrow(t.Context(), 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Close()
			var users sync.WaitGroup
			for u := range 4 {
				users.Go(func() {
					mine := int64(0)
					for i := range 3000 {
						n := int64((i*7919+u)%5) * chunk / 3
						if i%2 == 0 && l.Take(n) == nil {
							mine += n
						} else if i%2 == 1 {
							l.Give(mine)
							mine = 0
						}
						if used, held := mine, l.Held(); used > held {
							t.Errorf("%d taken, %d held", used, held)
							return
						}
					}
					l.Give(mine)
				})
			}
			users.Wait()
			if used := l.Used(); used != 0 {
				t.Errorf("%d still taken", used)
			}
		})
	}
	wg.Wait()
	if got := process.Used(); got != 0 {
		t.Errorf("%d still booked", got)
	}
}

func TestLoanAgreesWithTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const all = 20 * chunk
		process := budget.New("process", all)
		most := rapid.Int64Range(chunk, all).Draw(t, "max")
		l, err := process.Borrow(t.Context(), most)
		if err != nil {
			t.Fatal(err)
		}
		const reserve = int64(all / 6)
		most = min(most, (all-reserve)-(all-reserve)/3)
		other, used := int64(0), int64(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			n := rapid.Int64Range(0, 3*chunk).Draw(t, "bytes")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				l.Give(min(n, used))
				used -= min(n, used)
			case 1:
				if process.Reserve(n) == nil {
					other += n
				}
			default:
				left := all - other - used - n
				want := used+n <= most && (used+n <= l.Held() || (used+n)/2 <= left-reserve || used+n <= budget.SmallLoan && left >= 0)
				if err := l.Take(n); (err == nil) != want {
					t.Fatalf("%d more than %d: %v", n, used, err)
				}
				if want {
					used += n
				}
			}
			if held := l.Held(); held < used || held > max(most, chunk) || process.Used() != held+other {
				t.Fatalf("%d used, %d held, %d booked", used, held, process.Used())
			}
		}
	})
}

func BenchmarkLoanTake(b *testing.B) {
	process := budget.New("process", 1<<40)
	l, err := process.Borrow(b.Context(), 0)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		_ = l.Take(512)
	}
}

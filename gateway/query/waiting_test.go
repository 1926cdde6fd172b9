package query

import (
	"context"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// silent is a source of other processes: that of the table slow does not answer until the test lets it.
type silent struct {
	Source
	asked, answers chan struct{}
}

func (s *silent) wait(ctx context.Context, table string) {
	if table != "slow" {
		return
	}
	s.asked <- struct{}{}
	select {
	case <-s.answers:
	case <-ctx.Done():
	}
}

func (s *silent) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	s.wait(ctx, q.Table)
	return nil, ctx.Err()
}

func (s *silent) LabelNames(ctx context.Context, q *peer.Select, _ int) ([]string, bool, error) {
	s.wait(ctx, q.Table)
	return nil, false, ctx.Err()
}

func (s *silent) Divide(context.Context, *peer.Select, *columns.Request) (*Divided, error) {
	return nil, nil
}

func (s *silent) Together(ctx context.Context, _ int) context.Context { return ctx }

// TestASilentServerHoldsUpNoQueryOfOthers: queries that waited for a server, or for a leader, kept their turns, and three of them all those of a gateway with one processor.
func TestASilentServerHoldsUpNoQueryOfOthers(t *testing.T) {
	for _, plain := range []bool{false, true} {
		source := &silent{asked: make(chan struct{}, 6), answers: make(chan struct{})}
		r, err := New(Deps{Source: source, Processors: 1, Lane: lane.New(nil, 1)}, Settings{PlainEngine: plain})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		query := func(table string) error {
			q, err := r.Engine().NewInstantQuery(ctx, r.Table(table), nil, "sum(a)", time.Unix(60, 0))
			if err != nil {
				return err
			}
			defer q.Close()
			return q.Exec(ctx).Err
		}
		names := func(table string) error {
			ctx, l, err := r.Lookup(ctx)
			if err != nil {
				return err
			}
			defer l.End()
			_, _, err = r.Table(table).LabelNames(ctx, 0, 1, nil, 0)
			return l.Leave(err)
		}
		ends := make(chan error)
		for i := range 6 {
			go func() {
				if i%2 == 0 {
					ends <- query("slow")
				} else {
					ends <- names("slow")
				}
			}()
		}
		for range 6 {
			select {
			case <-source.asked:
			case <-ctx.Done():
			}
		}
		if err := query("well"); err != nil {
			t.Errorf("plain engine %t: a query of another table: %v", plain, err)
		}
		if err := names("well"); err != nil {
			t.Errorf("plain engine %t: a look-up in another table: %v", plain, err)
		}
		close(source.answers)
		for range 6 {
			if err := <-ends; err != nil {
				t.Errorf("plain engine %t: a query of the slow table: %v", plain, err)
			}
		}
		stop()
	}
}

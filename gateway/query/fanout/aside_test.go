package fanout

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// late is the series of a server, of which the second comes when it is sent.
type late struct {
	peer.SeriesSet
	name string
	sent chan struct{}
	at   int
}

func (l *late) Ready() bool { return l.at != 1 }

func (l *late) Next() bool {
	if l.at++; l.at == 2 {
		<-l.sent
	}
	return l.at <= 3
}

func (l *late) At() *peer.Series {
	return &peer.Series{Labels: point.MakeLabels("__name__", "m", "i", fmt.Sprint(l.name, l.at)), Times: []point.Nanos{1}, Values: []float64{1}}
}

func (l *late) Err() error   { return nil }
func (l *late) Close() error { return nil }

// TestASlowServerHoldsUpNoQueryOfOthersWhileItSendsSeries: a query kept its turn while it waited for the next series, and a few such queries all turns of a gateway.
func TestASlowServerHoldsUpNoQueryOfOthersWhileItSendsSeries(t *testing.T) {
	for servers := 1; servers <= 2; servers++ {
		synctest.Test(t, func(t *testing.T) {
			turns := lane.New(nil, 1)
			turn := turns.Turn(&lane.Share{})
			sent := make(chan struct{})
			s := &set{ctx: lane.With(t.Context(), turn), cancel: func() {}, q: &peer.Select{}}
			for i := range servers {
				s.readers = append(s.readers, &reader{group: &group{}, in: &late{name: string(rune('a' + i)), sent: sent, at: 1}})
			}
			read := make(chan int)
			go func() {
				if err := turn.Next(t.Context()); err != nil {
					t.Error(err)
				}
				s.start()
				n := 0
				for s.Next() {
					n++
				}
				if s.Err() != nil {
					t.Error(s.Err())
				}
				turn.End()
				read <- n
			}()
			synctest.Wait()
			if taken, _ := turns.InUse(); taken != 0 {
				t.Errorf("%d servers: a query that waits for one has %d turns", servers, taken)
			}
			close(sent)
			if n := <-read; n != 3*servers {
				t.Errorf("%d servers: %d series", servers, n)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

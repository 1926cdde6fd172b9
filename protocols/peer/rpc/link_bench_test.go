package rpc

import (
	"testing"

	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// counting is a handler that is done with every frame at once.
type counting struct {
	*ear
	want, got int
	all       chan struct{}
}

func (c *counting) Frame(_ peer.Link, _ *peer.Route, b peer.Body) {
	b.Done()
	if c.got++; c.got == c.want {
		close(c.all)
	}
}

// BenchmarkLinkFrames sends frames of 10 kB at full rate; CPU is that of both sides.
func BenchmarkLinkFrames(b *testing.B) {
	for name, link := range map[string]func(testing.TB, peer.LinkHandler, peer.LinkHandler) (*Links, *Links){"memory": benchJoined, "loopback": benchNetwork} {
		b.Run(name, func(b *testing.B) {
			from, to := newEar(), &counting{newEar(), b.N, 0, make(chan struct{})}
			x, y := link(b, from, to)
			l := from.linked(b, 1)
			rec := make([]byte, 10<<10)
			b.SetBytes(int64(len(rec)))
			b.ReportAllocs()
			before := cputime.Used()
			b.ResetTimer()
			for range b.N {
				if err := sendFrame(b.Context(), l, &someRoute, rec, nil); err != nil {
					b.Fatal(err)
				}
			}
			<-to.all
			b.StopTimer()
			b.ReportMetric(float64(cputime.Used()-before)/float64(b.N), "cpu-ns/frame")
			x.Close()
			y.Close()
		})
	}
}

func benchJoined(t testing.TB, a, b peer.LinkHandler) (*Links, *Links) {
	x, y := linksOf(t, "a", a), linksOf(t, "b", b)
	JoinLinks(x, y)
	return x, y
}

func benchNetwork(t testing.TB, a, b peer.LinkHandler) (*Links, *Links) {
	x, y := linksOf(t, "a", a), linksOf(t, "b", b)
	addr, _ := serveLinks(t, y, Settings{})
	x.Connect("b", dial(t, addr, DialSettings{}))
	return x, y
}

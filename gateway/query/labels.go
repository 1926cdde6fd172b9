package query

import (
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// promLabels turns a label set into Prometheus' form: one allocation, for the result.
func promLabels(b *labels.ScratchBuilder, l point.Labels) labels.Labels {
	b.Reset()
	for {
		name, value, rest, ok := l.Next()
		if !ok {
			return b.Labels()
		}
		b.Add(name, value)
		l = rest
	}
}

// peerMatchers turns PromQL's matchers into those that travel.
func peerMatchers(ms []*labels.Matcher) []peer.Matcher {
	out := make([]peer.Matcher, len(ms))
	for i, m := range ms {
		out[i] = peer.Matcher{Type: peerMatchType(m.Type), Name: m.Name, Value: m.Value}
	}
	return out
}

func peerMatchType(t labels.MatchType) peer.MatchType {
	switch t {
	case labels.MatchNotEqual:
		return peer.MatchNotEqual
	case labels.MatchRegexp:
		return peer.MatchRegexp
	case labels.MatchNotRegexp:
		return peer.MatchNotRegexp
	}
	return peer.MatchEqual
}

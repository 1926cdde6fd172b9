package fanout

import (
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// prefixesMax bounds the prefixes of one selector for which columns of the ring are chosen; one with more concerns all columns.
const prefixesMax = 64

// prefixes are the ranges of the ring in which all series lie that matchers select, by the table's ring rule (C95): those of a selector that names the values of
// all labels of the rule, each by = or as alternatives of a regular expression without other syntax. Nil: they may lie anywhere.
func prefixes(rule *point.RingRule, matchers []peer.Matcher) []point.RingRange {
	if rule.IsZero() || len(matchers) == 0 {
		return nil
	}
	values := map[string][]string{}
	for i := range matchers {
		m := &matchers[i]
		if vs := alternatives(m); vs != nil && (values[m.Name] == nil || len(vs) < len(values[m.Name])) {
			values[m.Name] = vs
		}
	}
	var out []point.RingRange
	chosen := map[string]string{}
	var each func(labels []string) bool
	each = func(labels []string) bool {
		if len(labels) == 0 {
			at, ok := rule.Range(func(label string) (string, bool) { v, ok := chosen[label]; return v, ok })
			out = append(out, at)
			return ok && len(out) <= prefixesMax
		}
		vs := values[labels[0]]
		for _, v := range vs {
			if chosen[labels[0]] = v; !each(labels[1:]) {
				return false
			}
		}
		return len(vs) > 0
	}
	if !each(rule.Labels()) {
		return nil
	}
	return out
}

// alternatives are the values that a matcher accepts, none of them empty; nil: others too, or an absent label.
func alternatives(m *peer.Matcher) []string {
	switch {
	case m.Type == peer.MatchEqual && m.Value != "":
		return []string{m.Value}
	case m.Type != peer.MatchRegexp || strings.ContainsAny(m.Value, `\.+*?()[]{}^$`):
		return nil
	}
	vs := strings.Split(m.Value, "|")
	if len(vs) > prefixesMax || slices.Contains(vs, "") {
		return nil
	}
	return vs
}

// withPrefixes returns the partitions that may hold series of the ranges.
func withPrefixes(ps []*topology.Partition, at []point.RingRange) []*topology.Partition {
	return slices.DeleteFunc(ps, func(p *topology.Partition) bool {
		return !slices.ContainsFunc(at, func(r point.RingRange) bool { return r.Overlaps(p.PointLo, p.PointHi) })
	})
}

package topology_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/metadata/topology/testdata/topologypb"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

func ringRule(t *testing.T, s string) point.RingRule {
	t.Helper()
	r, err := point.ParseRingRule(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRingRulesSurviveTheirBytes stores tables with a ring rule and reads them back, also with the generated code.
func TestRingRulesSurviveTheirBytes(t *testing.T) {
	seen := map[uint64]string{}
	for _, s := range []string{"", "host", "host,job", "path:/2", strings.Repeat("a", point.LabelNameMax) + ":255," + strings.Repeat("b", point.LabelNameMax) + ":/255," +
		strings.Repeat("c", point.LabelNameMax) + ":/255," + strings.Repeat("d", point.LabelNameMax) + ":/255"} {
		c := topology.Config{PartitionWidth: time.Hour, Ring: ringRule(t, s)}
		m, err := topology.New("cpu", c)
		if err != nil {
			t.Fatal(err)
		}
		b := m.Encode()
		if len(b) > m.EncodedSize() {
			t.Errorf("%.20q: %d bytes, at most %d were expected", s, len(b), m.EncodedSize())
		}
		back, err := topology.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if back.Config != m.Config || back.Digest() != m.Digest() {
			t.Errorf("%+v came back as %+v", m.Config, back.Config)
		}
		if was, ok := seen[m.Digest()]; ok {
			t.Errorf("%.20q has the digest of %.20q", s, was)
		}
		seen[m.Digest()] = s
		ops, err := topology.DecodeOps(topology.EncodeOps([]topology.Op{topology.SetConfig{Config: m.Config}}))
		if err != nil || ops[0] != (topology.SetConfig{Config: m.Config}) {
			t.Errorf("as an op it came back as %v, %v", ops, err)
		}
		var pb topologypb.Map
		if err := proto.Unmarshal(b[16:], &pb); err != nil || pb.Config.Ring != s {
			t.Errorf("%.20q is written as %.20q, %v", s, pb.Config.Ring, err)
		}
	}
}

func TestATableWithPartitionsKeepsItsRingRule(t *testing.T) {
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	c := m.Config
	c.Ring = ringRule(t, "host")
	if m, err = m.Apply(topology.SetConfig{Config: c}); err != nil || m.Config.Ring != c.Ring {
		t.Fatalf("a table without partitions: %v, %v", m, err)
	}
	if !strings.Contains(m.String(), "ring-by=host") {
		t.Errorf("it is drawn without its rule: %s", m)
	}
	l := point.MakeLabels(point.MetricName, "up", "host", "h1")
	if m.PointOf(l) != c.Ring.Point(l) || m.PointOf(l) == l.RingPoint() {
		t.Errorf("%v lies at %#x", l, m.PointOf(l))
	}
	m = m.Cover([]point.Nanos{0}, func(point.PartitionID) []topology.Placement { return []topology.Placement{{ID: 1, Server: "s1"}} })
	same := m.Config
	same.Retention = 24 * time.Hour
	if m, err = m.Apply(topology.SetConfig{Config: same}); err != nil {
		t.Fatalf("another retention: %v", err)
	}
	for _, rule := range []string{"", "job"} {
		c.Ring = ringRule(t, rule)
		if _, err := m.Apply(topology.SetConfig{Config: c}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `"host"`) {
			t.Errorf("with partitions it becomes %q: %v", rule, err)
		}
	}
	empty, err := m.Apply(topology.Drop{IDs: []point.PartitionID{1}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := empty.Apply(topology.SetConfig{Config: c}); !fault.Is(err, fault.Invalid) {
		t.Errorf("rows of partitions that were dropped may be on their way, and it becomes another: %v", err)
	}
}

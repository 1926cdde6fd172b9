package topology_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/metadata/topology/testdata/topologypb"
	"github.com/spillwaydb/spillway/smear"
)

// TestSmearingSurvivesItsBytes stores tables with a rule for smearing and reads them back, also with the generated code.
func TestSmearingSurvivesItsBytes(t *testing.T) {
	f := func(r smear.Rule, want *topologypb.Smear) {
		t.Helper()
		m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour, Smear: r})
		if err != nil {
			t.Fatal(err)
		}
		b := m.Encode()
		back, err := topology.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if back.Config != m.Config || back.Digest() != m.Digest() {
			t.Errorf("%+v came back as %+v", m.Config, back.Config)
		}
		ops, err := topology.DecodeOps(topology.EncodeOps([]topology.Op{topology.SetConfig{Config: m.Config}}))
		if err != nil || ops[0] != (topology.SetConfig{Config: m.Config}) {
			t.Errorf("as an op it came back as %v, %v", ops, err)
		}
		var pb topologypb.Map
		if err := proto.Unmarshal(b[16:], &pb); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(pb.Config.Smear, want) {
			t.Errorf("%+v is written as %v", r, pb.Config.Smear)
		}
	}
	f(smear.Rule{}, nil)
	f(smear.Rule{Mode: smear.Auto}, &topologypb.Smear{Mode: 1})
	f(smear.Rule{Mode: smear.Fixed, Threshold: 1, Window: 2, WindowMax: 3, Near: 4}, &topologypb.Smear{Mode: 2, ThresholdNanos: 1, WindowNanos: 2, WindowMaxNanos: 3, NearNanos: 4})
	f(smear.Rule{Threshold: 5e9}, &topologypb.Smear{ThresholdNanos: 5e9})
	f(smear.Rule{Kafka: smear.KafkaWait}, &topologypb.Smear{Kafka: 1})
	f(smear.Rule{Mode: smear.Auto, Kafka: smear.KafkaWait}, &topologypb.Smear{Mode: 1, Kafka: 1})
}

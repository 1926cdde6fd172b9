package topology_test

import (
	"math/rand/v2"
	"testing"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

// Servers of different builds compare digests: these numbers never change.
func TestDigestsAreAsDrawn(t *testing.T) {
	empty, err := topology.New("cpu", topology.Config{PartitionWidth: 3600e9})
	if err != nil {
		t.Fatal(err)
	}
	if got := empty.Digest(); got != 0xb03b3567ced37282 {
		t.Errorf("an empty map: %#x", got)
	}
	waits, err := topology.New("cpu", topology.Config{PartitionWidth: 3600e9, Smear: smear.Rule{Mode: smear.Auto, Kafka: smear.KafkaWait}})
	if err != nil {
		t.Fatal(err)
	}
	if got := waits.Digest(); got != 0x58f44680a732e525 {
		t.Errorf("rows that wait in Kafka: %#x", got)
	}
	if got := mapOfAll(t).Digest(); got != 0x35670acad3e535 {
		t.Errorf("a map with everything: %#x", got)
	}
}

// A digest that ops kept is the digest of the same map read from its bytes, and any change of the bytes that is still a map
// is another digest.
func TestDigestsStandForTheBytes(t *testing.T) {
	m := mapOfAll(t)
	b := m.Encode()
	back, err := topology.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if back.Digest() != m.Digest() || back.EncodedSize() != m.EncodedSize() || m.EncodedSize() < len(b) {
		t.Fatalf("read back: %#x of %d bytes, was %#x of %d; encoded it has %d", back.Digest(), back.EncodedSize(), m.Digest(), m.EncodedSize(), len(b))
	}
	seen := map[uint64]string{m.Digest(): "the map"}
	other := func(what string, op ...topology.Op) {
		t.Helper()
		next, err := m.Apply(op...)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if was := seen[next.Digest()]; was != "" {
			t.Errorf("%s has the digest of %s", what, was)
		}
		seen[next.Digest()] = what
	}
	other("a partition less", topology.Drop{IDs: []point.PartitionID{3}})
	other("another partition less", topology.Drop{IDs: []point.PartitionID{10}})
	other("a joining placement", topology.Join{Partition: 3, Placement: topology.Placement{ID: 5, Server: "s7"}})
	other("it joins elsewhere", topology.Join{Partition: 3, Placement: topology.Placement{ID: 5, Server: "s8"}})
	other("it has another id", topology.Join{Partition: 3, Placement: topology.Placement{ID: 6, Server: "s8"}})
	other("an aborted split", topology.SplitAbort{Partition: 6, Low: 16})
	other("another retention", topology.SetConfig{Config: topology.Config{PartitionWidth: 3600e9, Retention: 99 * 3600e9, Replicas: 2}})
	smears := func(r smear.Rule) topology.Op {
		c := m.Config
		c.Smear = r
		return topology.SetConfig{Config: c}
	}
	other("smeared", smears(smear.Rule{Mode: smear.Auto}))
	other("smeared for so long", smears(smear.Rule{Mode: smear.Fixed, Window: 30e9}))
	other("smeared below", smears(smear.Rule{Mode: smear.Auto, Threshold: 30e9}))
	other("smeared for at most so long", smears(smear.Rule{Mode: smear.Auto, WindowMax: 30e9}))
	other("smeared near now", smears(smear.Rule{Mode: smear.Auto, Near: 30e9}))
	other("smeared in Kafka", smears(smear.Rule{Mode: smear.Auto, Kafka: smear.KafkaWait}))
	other("the same seq, done and undone", topology.Join{Partition: 3, Placement: topology.Placement{ID: 5, Server: "s9"}}, topology.Unjoin{Partition: 3, Placement: 5})
}

// BenchmarkDigest is a transaction of one partition with its digest, on a table of 100,000.
func BenchmarkDigest(b *testing.B) {
	m := big(b, benchPartitions)
	rng := rand.New(rand.NewPCG(1, 2))
	b.ReportAllocs()
	for b.Loop() {
		id := point.PartitionID(1 + rng.IntN(m.Len()))
		next, err := m.Apply(topology.Join{Partition: id, Placement: topology.Placement{ID: 1, Server: "new"}})
		if err != nil || next.Digest() == m.Digest() {
			b.Fatal(err)
		}
	}
}

package topology_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/metadata/topology/testdata/topologypb"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

var update = flag.Bool("update", false, "rewrite golden files")

const hour = int64(time.Hour)

// everything is a transaction on an empty map with one op of each kind; all of them apply.
func everything(t testing.TB) []topology.Op {
	t.Helper()
	ranges, err := topology.Spread(nil, []uint32{1, 3})
	if err != nil {
		t.Fatal(err)
	}
	on := func(id uint64, servers ...topology.ServerID) (ps []topology.Placement) {
		for i, s := range servers {
			ps = append(ps, topology.Placement{ID: point.PlacementID(id<<8 + uint64(i)), Server: s})
		}
		return ps
	}
	part := func(id point.PartitionID, lo, hi int64, servers ...topology.ServerID) topology.Partition {
		return topology.Partition{ID: id, TimeLo: lo, TimeHi: hi, Placements: on(uint64(id), servers...)}
	}
	return []topology.Op{
		topology.SetConfig{Config: topology.Config{PartitionWidth: time.Hour, Retention: 100 * time.Hour, Replicas: 2}},
		topology.SetColumns{Now: -5, Layout: topology.Layout{From: 200 * hour, Weights: []uint32{1, 3}, Ranges: ranges}},
		topology.Create{Partitions: []topology.Partition{
			part(1, 0, hour, "s1", "s2"), part(2, hour, 2*hour, "s1", "s2"), part(3, 2*hour, 3*hour, "s1", "s2", "s3"),
			part(4, 3*hour, 4*hour, "s2", "s3"), part(5, 10*hour, 20*hour, "s3", "s2"), part(6, 20*hour, 21*hour, "s3", "s2"),
			part(7, -3*hour, -2*hour, "s3", "s2"), part(8, -300*hour, -290*hour, "s1", "s2"),
		}},
		topology.Presplit{Now: 5 * hour, Replace: []point.PartitionID{5}, Partitions: []topology.Partition{
			part(10, 10*hour, 11*hour, "s1", "s2"), part(11, 11*hour, 20*hour, "s2", "s3")}},
		topology.SplitBegin{Partition: 4, Split: topology.Split{At: topology.AtTime(3*hour + 1),
			Low: topology.Child{ID: 12, Placements: on(12, "s1", "s2")}, High: topology.Child{ID: 13, Placements: on(13, "s4")}}},
		topology.SplitFinalize{Partition: 4, Low: 12},
		topology.SplitBegin{Partition: 6, Split: topology.Split{At: topology.AtRing(1 << 63),
			Low: topology.Child{ID: 14, Placements: on(14, "s1", "s2")}, High: topology.Child{ID: 15, Placements: on(15, "s4")}}},
		topology.SplitAbort{Partition: 6, Low: 14},
		topology.SplitBegin{Partition: 6, Split: topology.Split{At: topology.AtRing(1 << 62),
			Low: topology.Child{ID: 16, Placements: on(16, "s1", "s2")}, High: topology.Child{ID: 17, Placements: on(17, "s4")}}},
		topology.Join{Partition: 10, Placement: topology.Placement{ID: math.MaxUint64, Server: "s9"}},
		topology.JoinFinalize{Partition: 10, Placement: math.MaxUint64},
		topology.Unjoin{Partition: 10, Placement: 10 << 8, Lost: true},
		topology.Remove{Partition: 3, Placement: 3 << 8},
		topology.Merge{Partitions: []point.PartitionID{1, 2}, Into: topology.Child{ID: 18, Placements: on(18, "s2", "s1")}, ClosedBefore: 2 * hour},
		topology.Drop{IDs: []point.PartitionID{7}},
		topology.Expire{Now: 0},
		topology.UnloadFinal{Partition: 4},
		topology.ForceJoin{Partition: 11, Placement: topology.Placement{ID: 77, Server: "s5"}, By: "ann", Reason: "both disks burnt"},
	}
}

func mapOfAll(t testing.TB) *topology.Map {
	t.Helper()
	m, err := topology.New("cpu", topology.Config{PartitionWidth: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if m, err = m.Apply(everything(t)...); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestEveryOpComesBack(t *testing.T) {
	ops := everything(t)
	kinds := map[reflect.Type]bool{}
	for _, op := range ops {
		kinds[reflect.TypeOf(op)] = true
	}
	if len(kinds) != 16 {
		t.Errorf("%d kinds of op are tried, there are 16", len(kinds))
	}
	got, err := topology.DecodeOps(topology.EncodeOps(ops))
	if err != nil || !reflect.DeepEqual(got, ops) {
		t.Fatalf("%v\n got %v\nwant %v", err, got, ops)
	}
	if none, err := topology.DecodeOps(topology.EncodeOps(nil)); err != nil || len(none) != 0 {
		t.Errorf("no ops: %v %v", none, err)
	}
	m := mapOfAll(t)
	back, err := topology.Decode(m.Encode())
	if err != nil || back.String() != m.String() || !bytes.Equal(back.Encode(), m.Encode()) {
		t.Fatalf("%v\n got %v\nwant %v", err, back, m)
	}
}

// Golden files hold the output of earlier builds.
func TestGolden(t *testing.T) {
	f := func(file string, got []byte) {
		t.Helper()
		path := filepath.Join("testdata", "golden", file)
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs (%v): a stored form must not change; a new one needs a new version\n%s", file, err, got)
		}
	}
	f("map.v2", mapOfAll(t).Encode())
	f("ops.v2", topology.EncodeOps(everything(t)))
	f("map.txt", []byte(mapOfAll(t).String()))
	var b strings.Builder
	for _, op := range everything(t) {
		b.WriteString(op.String() + "\n")
	}
	f("ops.txt", []byte(b.String()))

	old, err := os.ReadFile("testdata/golden/map.v1.json")
	if err != nil {
		t.Fatal(err)
	}
	m, err := topology.Decode(old)
	if err != nil {
		t.Fatal(err)
	}
	f("map.v1.txt", []byte(m.String()))
}

// The code that protoc makes reads the output of the code written by hand, and writes the same.
func TestGeneratedCodeAgrees(t *testing.T) {
	f := func(b []byte, msg proto.Message, decode func([]byte) ([]byte, error)) {
		t.Helper()
		if err := (proto.UnmarshalOptions{}).Unmarshal(b[16:], msg); err != nil {
			t.Fatal(err)
		}
		if text := protojson.Format(msg); strings.Contains(text, "unknown") {
			t.Error(text)
		}
		msg.ProtoReflect().SetUnknown(nil)
		again, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
		if err != nil || !bytes.Equal(again, b[16:]) {
			t.Errorf("%v: the generated code writes\n%x, by hand it is\n%x", err, again, b[16:])
		}
		if got, err := decode(wrap(b[5], again)); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%v: %x, want %x", err, got, b)
		}
	}
	f(mapOfAll(t).Encode(), &topologypb.Map{}, reencodeMap)
	f(topology.EncodeOps(everything(t)), &topologypb.Ops{}, reencodeOps)
}

func reencodeMap(b []byte) ([]byte, error) {
	m, err := topology.Decode(b)
	if err != nil {
		return nil, err
	}
	return m.Encode(), nil
}

func reencodeOps(b []byte) ([]byte, error) {
	ops, err := topology.DecodeOps(b)
	return topology.EncodeOps(ops), err
}

// wrap puts a body into an envelope made here.
func wrap(content byte, body []byte) []byte {
	b := append([]byte{'S', 'P', 'T', 'M', 2, content, 0, 0}, make([]byte, 8)...)
	b = append(b, body...)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(body)))
	c := crc32.MakeTable(crc32.Castagnoli)
	binary.LittleEndian.PutUint32(b[12:], crc32.Update(crc32.Checksum(b[:12], c), c, body))
	return b
}

func TestEveryCutAndEveryFlippedBitIsSeen(t *testing.T) {
	f := func(b []byte, decode func([]byte) ([]byte, error)) {
		t.Helper()
		for i := range b {
			if _, err := decode(b[:i]); !fault.Is(err, fault.Corrupt) {
				t.Fatalf("cut after %d of %d bytes: %v", i, len(b), err)
			}
			c := slices.Clone(b)
			c[i] ^= 1 << (i % 8)
			if _, err := decode(c); !fault.Is(err, fault.Corrupt) {
				t.Fatalf("bit %d of byte %d flipped: %v", i%8, i, err)
			}
		}
		if _, err := decode(append(slices.Clone(b), 0)); !fault.Is(err, fault.Corrupt) {
			t.Errorf("a byte too many: %v", err)
		}
	}
	f(mapOfAll(t).Encode(), reencodeMap)
	f(topology.EncodeOps(everything(t)), reencodeOps)
}

// Bytes with a right checksum are still not believed.
func TestDamageUnderTheChecksumIsSeen(t *testing.T) {
	type pb = topologypb.Map
	f := func(name, want string, damage func(m *pb)) {
		t.Helper()
		var m pb
		if err := proto.Unmarshal(mapOfAll(t).Encode()[16:], &m); err != nil {
			t.Fatal(err)
		}
		damage(&m)
		body, err := proto.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := topology.Decode(wrap(1, body)); !fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	find := func(m *pb, id uint64) *topologypb.Partition {
		return m.Partitions[slices.IndexFunc(m.Partitions, func(p *topologypb.Partition) bool { return p.Id == id })]
	}
	f("overlap", "p18 and p3 overlap (I2)", func(m *pb) { find(m, 18).TimeHi++ })
	f("empty", "is empty", func(m *pb) { find(m, 3).TimeHi = find(m, 3).TimeLo })
	f("empty ring", "empty ring", func(m *pb) { find(m, 3).PointLo, find(m, 3).PointHi = 5, 5 })
	f("order", "out of order", func(m *pb) { m.Partitions[3], m.Partitions[4] = m.Partitions[4], m.Partitions[3] })
	f("double id", "used twice", func(m *pb) { find(m, 3).Id = 12 })
	f("child with an id that is taken", "used twice", func(m *pb) { find(m, 6).Split.Low.Id = 12 })
	f("id 0", "no id", func(m *pb) { find(m, 3).Id = 0 })
	f("id from nowhere", "never given out", func(m *pb) { m.NextId = 17 })
	f("nowhere", "lies nowhere", func(m *pb) { find(m, 3).Placements = nil })
	f("twice on a server", "twice", func(m *pb) { find(m, 3).Placements[1].Server = find(m, 3).Placements[0].Server })
	f("a server that is not named", "server 99", func(m *pb) { find(m, 3).Placements[1].Server = 99 })
	f("a server without a name", "name of a server", func(m *pb) { m.Servers[0] = "" })
	f("unload without heirs", "C27", func(m *pb) { find(m, 1).Into = nil })
	f("heirs without unload", "C27", func(m *pb) { find(m, 3).Into = []uint64{12} })
	f("a split at the edge", "cannot be cut", func(m *pb) { find(m, 6).Split.At.Ring = 0 })
	f("a split of nothing", "does not go with its split", func(m *pb) { find(m, 6).Split = nil })
	f("a state to come", "does not know", func(m *pb) { find(m, 3).State = 9 })
	f("no width", "partition width", func(m *pb) { m.Config.PartitionWidthNanos = 0 })
	f("a kind of smearing to come", "mode 200 is unknown", func(m *pb) { m.Config.Smear = &topologypb.Smear{Mode: 200} })
	f("a kind of smearing above all", "mode 255 is unknown", func(m *pb) { m.Config.Smear = &topologypb.Smear{Mode: 1<<32 - 1} })
	f("a place for rows of Kafka to come", "Kafka(2)", func(m *pb) { m.Config.Smear = &topologypb.Smear{Kafka: 2} })
	f("a window below nothing", "is negative", func(m *pb) { m.Config.Smear = &topologypb.Smear{WindowNanos: -1} })
	f("no replicas", "no replicas", func(m *pb) { m.Config.Replicas = 0 })
	f("no table", "name of a table", func(m *pb) { m.Table = "" })
	f("a long table", "string of", func(m *pb) { m.Table = strings.Repeat("x", 256) })
	f("layouts", "out of order", func(m *pb) { m.Layouts = append(m.Layouts, m.Layouts[0]) })
	f("ranges", "do not rise", func(m *pb) { m.Layouts[0].Ranges[1].Lo = 0 })
	f("column without weight", "no weight", func(m *pb) { m.Layouts[0].Ranges[1].Column = 7 })
	f("too many placements", "more than 32", func(m *pb) {
		for range 40 {
			find(m, 3).Joining = append(find(m, 3).Joining, find(m, 3).Placements[0])
		}
	})
	f("a field of the future", "a newer one wrote it", func(m *pb) { m.ProtoReflect().SetUnknown([]byte{0x80 | 99<<3&0x78, 0x06, 1}) })
	for _, b := range []string{`{"v":2}`, `{"v":1,"partitions":[null]}`, `{`, ``, `SPTM`} {
		if _, err := topology.Decode([]byte(b)); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%q: %v", b, err)
		}
	}
	if _, err := topology.Decode(topology.EncodeOps(nil)); !fault.Is(err, fault.Corrupt) {
		t.Errorf("ops for a map: %v", err)
	}
}

// Readable input is written as it was read the next time, and the generated code reads it too.
func FuzzDecode(f *testing.F) {
	f.Add(mapOfAll(f).Encode()[16:], true)
	f.Add(topology.EncodeOps(everything(f))[16:], false)
	f.Add(topology.EncodeOps([]topology.Op{topology.SetConfig{Config: topology.Config{PartitionWidth: time.Second, Smear: smear.Rule{Mode: smear.Auto, Kafka: smear.KafkaWait}}}})[16:], false)
	f.Add([]byte(`{"v":1,"table":"t","seq":1,"config":{"partition_width":1000000000},"next_id":1}`), true)
	f.Fuzz(func(t *testing.T, body []byte, isMap bool) {
		if _, err := topology.Decode(body); err != nil && !fault.Is(err, fault.Corrupt) {
			t.Fatal(err)
		}
		content, decode, msg := byte(2), reencodeOps, proto.Message(&topologypb.Ops{})
		if isMap {
			content, decode, msg = 1, reencodeMap, &topologypb.Map{}
		}
		once, err := decode(wrap(content, body))
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatal(err)
			}
			return
		}
		if err := proto.Unmarshal(body, msg); err != nil {
			t.Fatalf("we read what protobuf does not: %v", err)
		}
		if twice, err := decode(once); err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%v: %x, then %x", err, once, twice)
		}
	})
}

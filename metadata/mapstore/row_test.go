package mapstore_test

import (
	"bytes"
	"os"
	"reflect"
	"testing"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	filesmem "github.com/spillwaydb/spillway/metadata/mapstore/mem"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

var id = peer.TxnID{0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}

func TestARowIsReadAsItWasWritten(t *testing.T) {
	f := func(file string, want mapstore.Row) {
		t.Helper()
		golden, err := os.ReadFile("testdata/rows/" + file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := mapstore.DecodeRow(coord.Row{Key: "tables/cpu", Value: golden})
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: %+v %v", file, got, err)
		}
		if !bytes.Equal(want.Encode(), golden) {
			t.Errorf("stored as %s", want.Encode())
		}
		for i := range golden {
			if _, err := mapstore.DecodeRow(coord.Row{Key: "tables/cpu", Value: golden[:i]}); !fault.Is(err, fault.Corrupt) {
				t.Errorf("cut at %d: %v", i, err)
			}
		}
	}
	f("v2.json", mapstore.Row{Txn: id, Seq: 7, Servers: []topology.ServerID{"s1", "s2", "s3"}})
	f("v2-dropped.json", mapstore.Row{Txn: id, Seq: 8, Servers: []topology.ServerID{"s1"}, Dropped: true})
	f("v2-dropped-ids.json", mapstore.Row{Txn: id, Seq: 8, Servers: []topology.ServerID{"s1"}, Dropped: true, NextID: 42})
	f("v2-dropping.json", mapstore.Row{Txn: id, Seq: 8, Servers: []topology.ServerID{"s1"}, Dropping: true})
	f("v2-round.json", mapstore.Row{Txn: id, Seq: 8, Servers: []topology.ServerID{"s1"}, Round: 3})

	refuse := func(value string) {
		t.Helper()
		if _, err := mapstore.DecodeRow(coord.Row{Key: "tables/cpu", Value: []byte(value)}); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", value, err)
		}
	}
	const txn = `"txn":"00112233445566778899aabbccddeeff"`
	refuse(`{"v":1,"table":"cpu"}`)
	refuse(`{"v":3,` + txn + `,"seq":1,"servers":["s1"]}`)
	refuse(`{"v":2,` + txn + `,"seq":0,"servers":["s1"]}`)
	refuse(`{"v":2,` + txn + `,"seq":1,"servers":[]}`)
	refuse(`{"v":2,` + txn + `,"seq":1,"servers":["s2","s1"]}`)
	refuse(`{"v":2,` + txn + `,"seq":1,"servers":["s1","s1"]}`)
	refuse(`{"v":2,` + txn + `,"seq":1,"servers":[""]}`)
	refuse(`{"v":2,` + txn + `,"seq":1,"servers":["s1"],"dropped":true,"dropping":true}`)
	refuse(`{"v":2,` + txn + `,"seq":1,"servers":["s1"],"next_id":4}`)
	refuse(`{"v":2,"txn":"0011","seq":1,"servers":["s1"]}`)
	refuse(`{"v":2,"txn":"00000000000000000000000000000000","seq":1,"servers":["s1"]}`)
}

func FuzzDecodeRow(f *testing.F) {
	for _, file := range []string{"v1.json", "v2.json", "v2-dropped.json", "v2-dropping.json", "v2-round.json"} {
		golden, err := os.ReadFile("testdata/rows/" + file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(golden)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := mapstore.DecodeRow(coord.Row{Key: "tables/cpu", Value: b})
		if err != nil {
			return
		}
		again, err := mapstore.DecodeRow(coord.Row{Key: "tables/cpu", Value: r.Encode()})
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("%s is read as %+v, then as %+v: %v", b, r, again, err)
		}
	})
}

// TestMapsInRowsAreMoved: the rows of standalone directories as they were written before there were METADATA files.
func TestMapsInRowsAreMoved(t *testing.T) {
	golden, err := os.ReadFile("testdata/rows/v1.json")
	if err != nil {
		t.Fatal(err)
	}
	store := mem.New()
	if _, _, err := store.Commit(t.Context(), nil, []coord.Write{{Key: "tables/cpu", Value: golden}}); err != nil {
		t.Fatal(err)
	}
	want, err := topology.Decode(golden)
	if err != nil {
		t.Fatal(err)
	}
	s := filesmem.NewServer(store, "local")
	defer s.Close()
	var first mapstore.Row
	for range 2 { // the second time there is nothing to do
		if err := s.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		row, _, err := store.Get(t.Context(), "tables/cpu")
		if err != nil {
			t.Fatal(err)
		}
		r, err := mapstore.DecodeRow(row)
		if err != nil || r.Seq != want.Seq || !reflect.DeepEqual(r.Servers, []topology.ServerID{"local"}) {
			t.Fatalf("%+v %v", r, err)
		}
		if first.Seq > 0 && first.Txn != r.Txn {
			t.Fatal("it was moved twice")
		}
		first = r
		m, err := s.Map("cpu", r.Txn)
		if err != nil || m.String() != want.String() || m.NextID != want.NextID {
			t.Fatalf("%v %v", m, err)
		}
	}
}

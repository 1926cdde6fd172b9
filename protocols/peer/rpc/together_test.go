package rpc

import (
	"encoding/binary"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/grpc/mem"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// groupOf draws inserts of staging that may go together.
func groupOf(t *rapid.T) (all []*peer.Insert) {
	do := rapid.SampledFrom([]peer.StagingDo{peer.Stage, peer.Forward, peer.Forget, peer.Inherit}).Draw(t, "do")
	var holders []string
	if do == peer.Stage {
		holders = rapid.SliceOfN(rapid.StringMatching("[a-z]{1,5}"), 1, 3).Draw(t, "holders")
	}
	partition, seq := point.PartitionID(rapid.Uint64().Draw(t, "partition")), rapid.Uint64().Draw(t, "map")
	var from *peer.Slice
	if do == peer.Inherit && rapid.Bool().Draw(t, "of a slice") {
		from = &peer.Slice{Partition: 3, Epoch: point.Epoch(rapid.Uint64Min(1).Draw(t, "epoch")), Under: point.Epoch(rapid.Uint64().Draw(t, "under"))}
	}
	for range rapid.IntRange(1, 5).Draw(t, "inserts") {
		in := &peer.Insert{Partition: partition, MapSeq: seq, Level: point.All, Stamp: point.Stamp(rapid.Uint64().Draw(t, "stamp")), Staging: &peer.Staging{Do: do, Holders: holders, Nonce: rapid.Uint64().Draw(t, "nonce"), From: from}}
		if do == peer.Stage {
			in.Staging.Due = rapid.Int64Range(0, 1<<62).Draw(t, "due")
		}
		for range rapid.IntRange(0, 4).Draw(t, "rows") {
			in.IDs, in.Times, in.Values = append(in.IDs, point.SeriesID(rapid.Uint32Range(0, idsEnd-1).Draw(t, "id"))), append(in.Times, rapid.Int64().Draw(t, "time")), append(in.Values, 1.5)
		}
		for range rapid.IntRange(0, 2).Draw(t, "hists") {
			in.Hists = append(in.Hists, point.HistRow{ID: 7, Time: 8, H: rapid.SliceOfN(rapid.Byte(), 1, 9).Draw(t, "h")})
		}
		for range rapid.IntRange(0, 2).Draw(t, "exemplars") {
			in.Exemplars = append(in.Exemplars, point.ExemplarRow{ID: 1, Time: 2, Value: 3, Labels: point.MakeLabels("__name__", "x")})
		}
		all = append(all, in)
	}
	return all
}

// equal compares inserts: an empty column may be nil.
func equal(a, b *peer.Insert) bool {
	x, y := *a, *b
	x.IDs, x.Times, x.Values, x.Hists, x.Exemplars = nil, nil, nil, nil, nil
	y.IDs, y.Times, y.Values, y.Hists, y.Exemplars = nil, nil, nil, nil, nil
	hists := slices.EqualFunc(a.Hists, b.Hists, func(v, w point.HistRow) bool {
		return v.ID == w.ID && v.Time == w.Time && slices.Equal(v.H, w.H)
	})
	return hists && reflect.DeepEqual(x, y) && slices.Equal(a.IDs, b.IDs) && slices.Equal(a.Times, b.Times) && slices.Equal(a.Values, b.Values) && slices.Equal(a.Exemplars, b.Exemplars)
}

// TestATooLargeGroupIsRefusedBeforeItIsDecoded: a gateway with a defect says 65,535 inserts, each of some bytes. There was a decoder for each before they were found to be
// too many.
func TestATooLargeGroupIsRefusedBeforeItIsDecoded(t *testing.T) {
	var e insertEncoder
	one, err := e.encodeGroup([]*peer.Insert{{Partition: 1, Level: point.All, Stamp: 1 << 40, Staging: &peer.Staging{Do: peer.Forget, Nonce: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	head, member := one[recordLen:recordLen+insertLen], one[recordLen+insertLen+2:]
	group := binary.LittleEndian.AppendUint16(slices.Clone(head), peer.TogetherMax+1)
	for range peer.TogetherMax + 1 {
		group = append(group, member...)
	}
	var d groupDecoder
	defer d.free()
	if _, err := d.decode(group); !fault.Is(err, fault.Corrupt) || len(d.members) > 0 {
		t.Errorf("%v, with %d decoders", err, len(d.members))
	}
}

func TestInsertsThatGoTogetherComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var e insertEncoder
		for range 2 { // scratch memory is used again
			want := groupOf(t)
			b, err := e.encodeGroup(want)
			if err != nil {
				t.Fatal(err)
			}
			r, rest, err := cutRecord(b)
			if err != nil || len(rest) > 0 || r.kind != recordGroup {
				t.Fatal(r.kind, len(rest), err)
			}
			var d groupDecoder
			got, err := d.decode(r.payload)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(got, want, equal) {
				for i := range min(len(got), len(want)) {
					t.Errorf("%+v %+v\nwant %+v %+v", got[i], got[i].Staging, want[i], want[i].Staging)
				}
				t.Fatalf("%d inserts, want %d", len(got), len(want))
			}
			d.free()
		}
	})
}

// TestInsertsThatDifferDoNotGoTogether: an insert that is not of staging would lose its checks, and one of another partition its partition.
func TestInsertsThatDifferDoNotGoTogether(t *testing.T) {
	in := func(change func(*peer.Insert)) *peer.Insert {
		x := &peer.Insert{Partition: 1, MapSeq: 2, Level: point.All, Staging: &peer.Staging{Do: peer.Stage, Nonce: 3, Holders: []string{"a"}}}
		change(x)
		return x
	}
	same := func(*peer.Insert) {}
	if _, err := new(insertEncoder).encodeGroup([]*peer.Insert{in(same), in(func(x *peer.Insert) { x.Stamp, x.Staging.Nonce, x.Staging.Due = 7, 8, 9 })}); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*peer.Insert){
		"partition": func(x *peer.Insert) { x.Partition = 9 }, "map": func(x *peer.Insert) { x.MapSeq = 9 }, "level": func(x *peer.Insert) { x.Level = point.One },
		"holders": func(x *peer.Insert) { x.Staging.Holders = []string{"a", "b"} }, "not of staging": func(x *peer.Insert) { x.Staging = nil },
		"do": func(x *peer.Insert) { x.Staging = &peer.Staging{Do: peer.Forward} }, "holders that are too many": func(x *peer.Insert) { x.Staging.Holders = make([]string, peer.HoldersMax+1) },
	} {
		if _, err := new(insertEncoder).encodeGroup([]*peer.Insert{in(same), in(change)}); !fault.Is(err, fault.Invalid) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	for _, n := range []int{0, peer.TogetherMax + 1} {
		if _, err := new(insertEncoder).encodeGroup(slices.Repeat([]*peer.Insert{in(same)}, n)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%d of them: %v", n, err)
		}
	}
}

// TestInsertsThatGoTogetherReachOlderServers one by one, and those of this version in one record.
func TestInsertsThatGoTogetherReachOlderServers(t *testing.T) {
	for version, records := range map[uint8]uint64{streamTogether - 1: 3, streamTogether: 1} {
		m := newMemory()
		addr, _ := serve(t, m, Settings{})
		st := openStream(t, dial(t, addr, DialSettings{})).(*stream)
		st.limits.version = version
		if err := st.Define(t.Context(), []peer.Def{{ID: 1, Labels: point.MakeLabels("__name__", "m")}}); err != nil {
			t.Fatal(err)
		}
		var all []*peer.Insert
		for i := range 3 {
			all = append(all, &peer.Insert{Stamp: point.Stamp(i + 1), Level: point.All, IDs: []point.SeriesID{1}, Times: []point.Nanos{int64(i)}, Values: []float64{2},
				Staging: &peer.Staging{Do: peer.Stage, Nonce: uint64(i), Holders: []string{"a"}, Due: 1e18 + int64(i)}})
		}
		st.mu.Lock()
		before := st.mu.next
		st.mu.Unlock()
		if err := peer.InsertTogether(t.Context(), st, all); err != nil {
			t.Fatal(err)
		}
		st.mu.Lock()
		sent := st.mu.next - before
		st.mu.Unlock()
		if sent != records {
			t.Errorf("version %d: %d records, want %d", version, sent, records)
		}
		slices.SortFunc(m.got, func(a, b peer.Insert) int { return int(a.Stamp) - int(b.Stamp) })
		if len(m.got) != 3 {
			t.Fatalf("version %d: %d inserts arrived", version, len(m.got))
		}
		for i := range all {
			if !equal(&m.got[i], all[i]) {
				t.Errorf("version %d: %+v arrived, sent %+v", version, m.got[i], all[i])
			}
		}
	}
}

// TestOneOfThoseThatGoTogetherFailsAll: the sender does not count any as kept.
func TestOneOfThoseThatGoTogetherFailsAll(t *testing.T) {
	m := newMemory()
	m.newest = 2
	addr, _ := serve(t, m, Settings{})
	st := openStream(t, dial(t, addr, DialSettings{}))
	var all []*peer.Insert
	for i := range 3 {
		all = append(all, &peer.Insert{Stamp: point.Stamp(i + 1), Level: point.All, Staging: &peer.Staging{Do: peer.Forward}})
	}
	err := peer.InsertTogether(t.Context(), st, all)
	if above, late := peer.StampAbove(err); !late || above != 2 {
		t.Errorf("%v", err)
	}
}

// TestAGatewayForwardsNothingTogetherEither: its role counts for a group as for an insert alone.
func TestAGatewayForwardsNothingTogetherEither(t *testing.T) {
	forward := &peer.Insert{Level: point.All, Staging: &peer.Staging{Do: peer.Forward}}
	for role, kept := range map[Role]int{RoleGateway: 0, RoleStorage: 2} {
		m := newMemory()
		_, srv := serve(t, m, Settings{})
		rec, err := new(insertEncoder).encodeGroup([]*peer.Insert{forward, forward})
		if err != nil {
			t.Fatal(err)
		}
		in := &inserts{s: srv, ss: ofContext{ctx: t.Context()}, stream: &memoryStream{m}, version: streamVersion, role: role}
		err = in.do(job{1, rec[recordLen:], mem.SliceBuffer(nil), true})
		if len(m.got) != kept || fault.Is(err, fault.Denied) != (kept == 0) || kept > 0 && err != nil {
			t.Errorf("role %s: %d are kept, %v", role, len(m.got), err)
		}
	}
}

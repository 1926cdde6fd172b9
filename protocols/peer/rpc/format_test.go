package rpc

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/protocols/trace"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// example is a message of each kind, and its text when it is read.
func examples() map[string][]byte {
	define := new(defineEncoder)
	defs, _ := define.encode(recordDefine, []peer.Def{
		{ID: 10, Labels: point.MakeLabels("__name__", "cpu_idle", "host", "a", "os", "x")},
		{ID: 11, Labels: point.MakeLabels("__name__", "cpu_user", "host", "a", "os", "x")},
		{ID: 5, Labels: point.MakeLabels("__name__", "cpu_idle", "host", "b")},
	})
	setSeq(defs, 1)
	insert, err := new(insertEncoder).encode(&peer.Insert{
		Partition: 7, MapSeq: 42, Stamp: 1 << 20, Level: point.One,
		IDs: []point.SeriesID{10, 11, 5}, Times: []point.Nanos{1e18, 1e18, 1e18 + 5}, Values: []float64{1, 2.5, math.Pi},
		Hists:     []point.HistRow{{ID: 10, Time: 3, H: []byte{1, 2}}},
		Exemplars: []point.ExemplarRow{{ID: 5, Time: 4, Value: 9, Labels: point.MakeLabels("__name__", "x")}},
	})
	if err != nil {
		panic(err)
	}
	setSeq(insert, 2)
	acks, from := beginRecord(nil, recordAcks)
	acks = appendAck(acks, 2, nil)
	acks = appendAck(acks, 1, fault.Errorf(fault.Stale, "look again"))
	endRecord(acks, from)
	ahead, from := beginRecord(nil, recordAcks)
	ahead = appendAck(ahead, 3, peer.NewAhead(1e18))
	endRecord(ahead, from)
	newer, from := beginRecord(nil, recordAcks)
	newer = appendAck(newer, 4, peer.WithMap(fault.Errorf(fault.Stale, "look again"), peer.MapAt{Txn: peer.TxnID{1, 2, 15: 16}, Seq: 258, Servers: []string{"n1", "n2"}}))
	endRecord(newer, from)
	late, from := beginRecord(nil, recordAcks)
	late = appendAck(late, 5, peer.NewLate(rank.At(1e18)|7))
	endRecord(late, from)
	offer, _ := new(defineEncoder).encode(recordOffer, []peer.Def{{ID: 3, Labels: point.MakeLabels("__name__", "m")}})
	setSeq(offer, 7)
	refused, from := beginRecord(nil, recordAcks)
	refused = appendAck(refused, 7, peer.Refused{IDs: []point.SeriesID{3, 1, 70_000}, Reason: "no room"}.AsError())
	endRecord(refused, from)
	var w batchWriter
	w.Reset()
	shared := []point.Nanos{1e18, 1e18 + 15e9, 1e18 + 30e9}
	for _, s := range []peer.Series{
		{Labels: point.MakeLabels("__name__", "m", "host", "a"), Times: shared, Values: []float64{1, 2, 3}},
		{Labels: point.MakeLabels("__name__", "m", "host", "b"), Times: shared, Values: []float64{4, 5, 6}},
		{Labels: point.MakeLabels("__name__", "m", "host", "c"), Hists: []peer.Hist{{Time: -1, H: []byte{7, 8}}}},
		{Labels: point.MakeLabels("__name__", "n"), Times: []point.Nanos{3, 7, 8, 20}, Values: []float64{0, 0, 0, 0}},
	} {
		w.add(&s)
	}
	w.pack()
	batch := w.append(nil, batchGoesOn)
	w.Reset()
	w.ranked = true
	for _, s := range []peer.Series{
		{Labels: point.MakeLabels("__name__", "m", "host", "a"), Times: shared, Values: []float64{1, 2, 3}, Ranks: []point.Stamp{1 << 20, 1 << 20, 5<<20 + 7}},
		{Labels: point.MakeLabels("__name__", "m", "host", "c"), Times: []point.Nanos{3}, Values: []float64{4}, Hists: []peer.Hist{{Time: -1, H: []byte{7, 8}}},
			Ranks: []point.Stamp{math.MaxUint64}, HistRanks: []point.Stamp{2}},
	} {
		w.add(&s)
	}
	w.pack()
	ranked := w.append(nil, 0)
	staged := stagedExample()
	h, wc := hello{1, 3, "metrics"}, welcome{3, 1024, 64 << 20}
	return map[string][]byte{
		"hello": h.append(nil), "welcome": wc.append(nil), "define": defs, "insert": insert, "acks": acks, "ahead": ahead, "newer": newer, "late": late, "offer": offer, "refused": refused,
		"batch": batch, "ranked": ranked, "slice": sliceExample(), "staged": staged, "traced": tracedExample(), "together": togetherExample(),
	}
}

// stagedExample is an insert to be staged on two servers.
func stagedExample() []byte {
	b, err := new(insertEncoder).encode(&peer.Insert{Stamp: 1 << 20, IDs: []point.SeriesID{3}, Times: []point.Nanos{5}, Values: []float64{1},
		Staging: &peer.Staging{Do: peer.Stage, Nonce: 77, Holders: []string{"s1", "s2"}}})
	if err != nil {
		panic(err)
	}
	setSeq(b, 5)
	return b
}

// sliceExample is a row of a slice.
func sliceExample() []byte {
	b, err := new(insertEncoder).encode(&peer.Insert{Partition: 9, MapSeq: 42, Stamp: 1 << 20, Level: point.All, IDs: []point.SeriesID{3}, Times: []point.Nanos{5}, Values: []float64{1},
		Staging: &peer.Staging{Do: peer.Inherit, From: &peer.Slice{Partition: 7, Epoch: 300, Under: 200}}})
	if err != nil {
		panic(err)
	}
	setSeq(b, 5)
	return b
}

// togetherExample are two frames of one request, to be staged until two moments.
func togetherExample() []byte {
	e := new(insertEncoder)
	for i := range e.parent {
		e.parent[i] = byte(0xa0 + i)
	}
	staging := func(nonce uint64, due point.Nanos) *peer.Staging {
		return &peer.Staging{Do: peer.Stage, Nonce: nonce, Holders: []string{"s1", "s2"}, Due: due}
	}
	b, err := e.encodeGroup([]*peer.Insert{
		{MapSeq: 42, Stamp: 1 << 20, Level: point.All, IDs: []point.SeriesID{3}, Times: []point.Nanos{5}, Values: []float64{1}, Staging: staging(77, 1e18)},
		{MapSeq: 42, Stamp: 3 << 20, Level: point.All, IDs: []point.SeriesID{4, 3}, Times: []point.Nanos{5, 6}, Values: []float64{2, 2.5}, Staging: staging(78, 0)},
	})
	if err != nil {
		panic(err)
	}
	setSeq(b, 8)
	return b
}

// tracedExample is an insert that is part of a trace, to be staged until it is due.
func tracedExample() []byte {
	e := new(insertEncoder)
	for i := range e.parent {
		e.parent[i] = byte(0xa0 + i)
	}
	b, err := e.encode(&peer.Insert{Stamp: 1 << 20, IDs: []point.SeriesID{3}, Times: []point.Nanos{5}, Values: []float64{1},
		Staging: &peer.Staging{Do: peer.Stage, Nonce: 77, Holders: []string{"s1"}, Due: 1e18}})
	if err != nil {
		panic(err)
	}
	setSeq(b, 6)
	return b
}

// TestATraceBelongsToOneInsert: encoders and decoders are used again.
func TestATraceBelongsToOneInsert(t *testing.T) {
	parent := trace.Parent{1, 23: 24}
	e, d := new(insertEncoder), new(insertDecoder)
	for _, want := range []trace.Parent{parent, {}, parent} {
		e.parent = want
		b, err := e.encode(&peer.Insert{Stamp: 3})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.decode(b[recordLen:]); err != nil || d.parent != want {
			t.Errorf("%x, want %x: %v", d.parent, want, err)
		}
		b[recordLen+atTraced] = 2
		if _, err := d.decode(b[recordLen:]); !fault.Is(err, fault.Corrupt) {
			t.Errorf("a flag to come: %v", err)
		}
	}
	e.parent = parent
	if _, err := e.encode(&peer.Insert{Staging: &peer.Staging{Do: 9}}); err == nil || e.parent != (trace.Parent{}) {
		t.Errorf("after %v the next insert would be of %x", err, e.parent)
	}
}

// TestInsertsOfStagingAreReadAsTheyWereWritten, and damaged ones are refused.
func TestInsertsOfStagingAreReadAsTheyWereWritten(t *testing.T) {
	for _, s := range []peer.Staging{{Do: peer.Stage, Nonce: 9, Holders: []string{"a", "b"}}, {Do: peer.Stage, Nonce: 9, Holders: []string{"a"}, Due: 1e18}, {Do: peer.Forward}, {Do: peer.Forget, Nonce: 1 << 63}, {Do: peer.Inherit}, {Do: peer.Inherit, From: &peer.Slice{Partition: 1 << 62, Epoch: 7, Under: 1 << 61}}} {
		b, err := new(insertEncoder).encode(&peer.Insert{Stamp: 3, Staging: &s})
		if err != nil {
			t.Fatal(err)
		}
		var d insertDecoder
		got, err := d.decode(b[recordLen:])
		if err != nil || !reflect.DeepEqual(got.Staging, &s) {
			t.Errorf("%+v is read as %+v, %v", s, got.Staging, err)
		}
		if got, err := d.decode(stagedExample()[recordLen:]); err != nil || got.Staging == nil || got.Staging.Nonce != 77 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	for _, s := range []peer.Staging{{Do: 5}, {Do: peer.Forward, Due: 1}, {Do: peer.Inherit, Due: 1}, {Do: peer.Inherit, From: &peer.Slice{Partition: 1}}, {Do: peer.Forward, From: &peer.Slice{Epoch: 1}}, {Do: peer.Inherit, Holders: []string{"a"}}, {Do: peer.Stage, Holders: []string{"a"}, Due: -1}, {Do: peer.Stage}, {Do: peer.Forget, Holders: []string{"a"}}, {Do: peer.Stage, Holders: []string{""}}, {Do: peer.Stage, Holders: make([]string, peer.HoldersMax+1)}} {
		if _, err := new(insertEncoder).encode(&peer.Insert{Staging: &s}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	later, err := new(insertEncoder).encode(&peer.Insert{Stamp: 3, Staging: &peer.Staging{Do: peer.Stage, Nonce: 9, Holders: []string{"a"}, Due: 1e18}})
	if err != nil {
		t.Fatal(err)
	}
	slice, err := new(insertEncoder).encode(&peer.Insert{Stamp: 3, Staging: &peer.Staging{Do: peer.Inherit, From: &peer.Slice{Partition: 4, Epoch: 5, Under: 6}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, whole := range [][]byte{stagedExample()[recordLen:], later[recordLen:], slice[recordLen:]} {
		for n := range whole {
			if got, err := new(insertDecoder).decode(whole[:n]); !fault.Is(err, fault.Corrupt) {
				t.Errorf("cut at %d: %+v, %v", n, got, err)
			}
		}
	}
	later[recordLen+atStagingDue], slice[recordLen+atStagingFrom] = 2, 2
	if got, err := new(insertDecoder).decode(slice[recordLen:]); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a flag to come: %+v, %v", got, err)
	}
	if got, err := new(insertDecoder).decode(later[recordLen:]); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a flag to come: %+v, %v", got, err)
	}
}

// TestInsertsBelongToTheirRole: a storage server inserts staged rows and its own metrics alone, and a gateway may not send inserts that forward staged rows; it restores backups.
func TestInsertsBelongToTheirRole(t *testing.T) {
	in := func(table string, role Role, in peer.Insert, allowed bool) {
		t.Helper()
		if err := allowInsert(role, table, &in); (err == nil) != allowed || err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("%s, table %s, %+v: %v", role, table, in.Staging, err)
		}
	}
	f := func(role Role, row peer.Insert, allowed bool) {
		t.Helper()
		in("t", role, row, allowed)
	}
	do := func(d peer.StagingDo) peer.Insert { return peer.Insert{Staging: &peer.Staging{Do: d}} }
	f(RoleGateway, peer.Insert{}, true)
	f(RoleGateway, do(peer.Stage), true)
	f(RoleGateway, do(peer.Forward), false)
	f(RoleGateway, do(peer.Forget), false)
	f(RoleGateway, do(peer.Inherit), true) // rows of a backup
	f(RoleStorage, peer.Insert{}, false)
	f(RoleStorage, do(peer.Stage), true)
	f(RoleStorage, do(peer.Forward), true)
	f(RoleStorage, do(peer.Forget), true)
	f(RoleStorage, do(peer.Inherit), true)
	in(peer.OwnTable, RoleStorage, peer.Insert{}, true)
	in(peer.OwnTable, RoleGateway, do(peer.Forward), false)
	for _, table := range []string{"t", peer.OwnTable} {
		if err := allowMetadata(RoleStorage, table); (err == nil) != (table == peer.OwnTable) || err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("a storage server describes metrics of table %s: %v", table, err)
		}
		if err := allowMetadata(RoleGateway, table); err != nil {
			t.Errorf("a gateway describes metrics of table %s: %v", table, err)
		}
	}
	f("", do(peer.Forward), true) // peers that speak in the clear have no roles
}

// TestFormatIsTheDrawnOne compares the bytes with files: peers of other versions read them.
func TestFormatIsTheDrawnOne(t *testing.T) {
	for name, b := range examples() {
		golden(t, name, hex.Dump(b)+"\n"+read(name, b))
	}
}

// golden compares the text of an example with its file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".hex")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is\n%swant\n%s", name, got, want)
	}
}

// read decodes a message as its receiver does, and returns its text or the error.
func read(name string, b []byte) string {
	if name == "batch" || name == "ranked" {
		var r batchReader
		series, goesOn, err := r.decode(b)
		if err != nil {
			return err.Error()
		}
		text := fmt.Sprintf("goes on: %v\n", goesOn)
		for _, s := range series {
			text += fmt.Sprintf("%v %v %v %v", s.Labels, s.Times, s.Values, s.Hists)
			if name == "ranked" {
				text += fmt.Sprint(" ranks ", s.Ranks, s.HistRanks)
			}
			text += "\n"
		}
		return text
	}
	text := ""
	for len(b) > 0 {
		r, rest, err := cutRecord(b)
		if err != nil {
			return err.Error()
		}
		b = rest
		text += fmt.Sprintf("%d: ", r.seq)
		switch r.kind {
		case recordHello:
			h, err := decodeHello(r.payload)
			text += fmt.Sprintf("%v %v\n", h, err)
		case recordWelcome:
			w, err := decodeWelcome(r.payload)
			text += fmt.Sprintf("%v %v\n", w, err)
		case recordDefine, recordOffer:
			var d defineDecoder
			defs, err := d.decode(r.payload)
			text += fmt.Sprintf("%v %v\n", defs, err)
		case recordInsert:
			var d insertDecoder
			in, err := d.decode(r.payload)
			if err != nil {
				return text + err.Error()
			}
			text += fmt.Sprintf("%+v\n", *in)
			if d.parent != (trace.Parent{}) {
				text += fmt.Sprintf("from span %x\n", d.parent)
			}
		case recordGroup:
			var d groupDecoder
			all, err := d.decode(r.payload)
			if err != nil {
				return text + err.Error()
			}
			for _, in := range all {
				text += fmt.Sprintf("%+v\n", *in)
			}
			text += fmt.Sprintf("from span %x\n", d.head.parent)
		case recordAcks:
			for acks := r.payload; len(acks) > 0; {
				var seq uint64
				var ack error
				if seq, ack, acks, err = cutAck(acks); err != nil {
					return text + err.Error()
				}
				text += fmt.Sprintf("%d %v %v; ", seq, ack, fault.KindOf(ack))
				if at, ok := peer.MapOf(ack); ok {
					text += fmt.Sprintf("map %d of %x on %v; ", at.Seq, at.Txn, at.Servers)
				}
				if r, ok := peer.RefusedOf(ack); ok {
					text += fmt.Sprintf("series %v, %s; ", r.IDs, r.Reason)
				}
			}
			text += "\n"
		}
	}
	return text
}

// decodeAll returns the error of a message of any kind.
func decodeAll(b []byte) error {
	var r batchReader
	_, _, err := r.decode(b)
	if err == nil {
		return nil
	}
	var def defineDecoder
	var ins insertDecoder
	for len(b) > 0 {
		rec, rest, err := cutRecord(b)
		if err != nil {
			return err
		}
		b = rest
		switch rec.kind {
		case recordHello:
			_, err = decodeHello(rec.payload)
		case recordWelcome:
			_, err = decodeWelcome(rec.payload)
		case recordDefine, recordOffer:
			_, err = def.decode(rec.payload)
		case recordInsert:
			_, err = ins.decode(rec.payload)
		case recordGroup:
			var group groupDecoder
			_, err = group.decode(rec.payload)
			group.free()
		case recordAcks:
			for acks := rec.payload; len(acks) > 0 && err == nil; {
				_, _, acks, err = cutAck(acks)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestCutMessagesAreRefused cuts every message at every byte, and cuts payloads with records of matching lengths.
func TestCutMessagesAreRefused(t *testing.T) {
	for name, b := range examples() {
		if err := decodeAll(b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for n := 1; n < len(b); n++ {
			if err := decodeAll(b[:n:n]); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s of %d bytes, cut after %d: %v", name, len(b), n, err)
			}
		}
		if name == "batch" || name == "ranked" || name == "hello" {
			continue // a table's name may be shorter
		}
		for n := recordLen; n < len(b); n++ {
			cut := slices.Clone(b[:n])
			endRecord(cut, recordLen)
			if err := decodeAll(cut); !fault.Is(err, fault.Corrupt) && (name != "acks" && name != "ahead" && name != "newer" && name != "late" && name != "refused" || n != recordLen && (n != recordLen+2 || name != "acks")) {
				t.Errorf("the payload of %s, cut after %d: %v", name, n, err)
			}
		}
	}
}

// TestFlippedBytesAreRefusedOrRead: no value of a length causes a panic.
func TestFlippedBytesAreRefusedOrRead(t *testing.T) {
	for name, b := range examples() {
		for at := range b {
			for _, x := range []byte{0xff, 0x80, 0x01, 0x7f} {
				c := slices.Clone(b)
				c[at] ^= x
				if err := decodeAll(c); err != nil && !fault.Is(err, fault.Corrupt) && !fault.Is(err, fault.Unavailable) {
					t.Errorf("%s with byte %d changed: %v", name, at, err)
				}
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range examples() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := decodeAll(b); err != nil && !fault.Is(err, fault.Corrupt) && !fault.Is(err, fault.Unavailable) {
			t.Fatal(err)
		}
		// Labels inside s2 and checksums inside frames stop a fuzzer: these parts are reached bare too.
		var r labelReader
		r.reset(b)
		for {
			l, err := r.read()
			if err != nil {
				break
			}
			if !l.Valid() {
				t.Fatalf("%q is not valid", string(l))
			}
			if len(r.b) == 0 {
				break
			}
		}
		if len(b) > 4 {
			var r batchReader
			_ = r.columns(b[4:], int(b[0]), int(b[1])<<8|int(b[2]))
			_, _ = readHists(make([]peer.Hist, int(b[3])), b[4:])
		}
	})
}

func drawLabels(t *rapid.T) point.Labels {
	piece := rapid.SampledFrom([]string{"a", "b", "c", "é", strings.Repeat("x", 200)})
	var b point.LabelsBuilder
	set := rapid.MapOfN(piece, piece, 0, 5).Draw(t, "labels")
	set["__name__"] = piece.Draw(t, "name")
	for k, v := range set {
		b.Add([]byte(k), []byte(v))
	}
	l, err := b.Labels()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestDefinitionsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		defs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) peer.Def {
			return peer.Def{ID: point.SeriesID(rapid.Uint32Range(0, idsEnd-1).Draw(t, "id")), Labels: drawLabels(t)}
		}), 1, 30).Draw(t, "defs")
		var e defineEncoder
		var d defineDecoder
		for range 2 { // scratch memory is used again
			b, n := e.encode(recordDefine, defs)
			r, _, err := cutRecord(b)
			if err != nil || n != len(defs) {
				t.Fatal(n, err)
			}
			got, err := d.decode(r.payload)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(defs, got); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

func TestBatchesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 5), rapid.Int64()), 0, 20)
		var shared []point.Nanos
		series := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) peer.Series {
			s := peer.Series{Labels: drawLabels(t), Times: shared}
			if rapid.Bool().Draw(t, "own times") {
				s.Times = times.Draw(t, "times")
				shared = s.Times
			}
			for range s.Times {
				s.Values = append(s.Values, math.Float64frombits(rapid.Uint64().Draw(t, "value")))
			}
			for range rapid.IntRange(0, 3).Draw(t, "hists") {
				s.Hists = append(s.Hists, peer.Hist{Time: rapid.Int64().Draw(t, "time"), H: rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "h")})
			}
			return s
		}), 1, 20).Draw(t, "series")
		var w batchWriter
		w.Reset()
		for i := range series {
			w.add(&series[i])
		}
		n := w.pack()
		b := w.append(nil, 0)
		if len(b) != n {
			t.Fatalf("%d bytes, announced were %d", len(b), n)
		}
		var r batchReader
		got, goesOn, err := r.decode(b)
		if err != nil || goesOn {
			t.Fatal(goesOn, err)
		}
		bits := cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) })
		for i := range got {
			if len(series[i].Times) == 0 {
				series[i].Times = nil
			}
			for k := range series[i].Hists {
				if !bytes.Equal(series[i].Hists[k].H, got[i].Hists[k].H) {
					t.Fatal("a histogram differs")
				}
				series[i].Hists[k].H, got[i].Hists[k].H = nil, nil
			}
		}
		if diff := cmp.Diff(series, got, bits); diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestLabelsDoNotExplode: a few bytes that stand for many sets are refused before their memory is allocated.
func TestLabelsDoNotExplode(t *testing.T) {
	var w labelWriter
	w.Reset()
	big := point.MakeLabels("__name__", "m", "v", strings.Repeat("x", 60_000))
	w.add(big)
	for range 2000 { // 120 MB in 6 kB
		w.add(big)
	}
	var r labelReader
	r.reset(w.b)
	read := 0
	for ; ; read++ {
		if _, err := r.read(); err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatal(err)
			}
			break
		}
	}
	if read == 0 || read*len(big) > labelBytesMax {
		t.Errorf("%d sets of %d bytes were read", read, len(big))
	}
}

func TestVersionsAreNegotiated(t *testing.T) {
	f := func(lo, hi, want uint8) {
		t.Helper()
		got, err := negotiate(hello{versionMin: lo, versionMax: hi})
		if got != want || (want == 0) != fault.Is(err, fault.Unavailable) {
			t.Errorf("%d to %d: %d, %v; want %d", lo, hi, got, err, want)
		}
	}
	f(1, 1, 1)
	f(0, 12, 11)
	f(1, 2, 2)
	f(1, 3, 3)
	f(2, 12, 11)
	f(2, 10, 10)
	f(2, 9, 9)
	f(2, 8, 8)
	f(2, 7, 7)
	f(2, 5, 5)
	f(12, 12, 0)
	f(0, 0, 0)
}

func TestKindsHaveCodes(t *testing.T) {
	seen := map[byte]bool{}
	for _, k := range fault.Kinds() {
		code := codeOf(k)
		if kindCodes[code] != k || seen[code] {
			t.Errorf("%v has code %d, which is %v", k, code, kindCodes[code])
		}
		seen[code] = true
		if _, err, _, _ := cutAck(appendAck(nil, 1, fault.Errorf(k, "%s", strings.Repeat("x", 1<<20)))); !fault.Is(err, remote(k)) || len(err.Error()) != textBytesMax {
			t.Errorf("%v arrives as %.100v", k, err)
		}
	}
}

// TestDefinitionsAreSmall: where many series are new, a definition needs a few bytes.
func TestDefinitionsAreSmall(t *testing.T) {
	b, n := new(defineEncoder).encode(recordDefine, devopsDefs(2020))
	if per := float64(len(b)) / float64(n); per > 4.5 {
		t.Errorf("%.2f bytes a definition, 3 to 4 are meant", per)
	} else {
		t.Logf("%.2f bytes a definition of %d bytes of labels", per, len(devopsDefs(1)[0].Labels))
	}
}

// devopsDefs are series of hosts with 101 metrics each.
func devopsDefs(n int) []peer.Def {
	rng := rand.New(rand.NewPCG(1, 1))
	defs := make([]peer.Def, n)
	var host, rack string
	for i := range defs {
		if i%101 == 0 {
			host, rack = fmt.Sprint("host_", i/101), fmt.Sprint(rng.IntN(100))
		}
		defs[i] = peer.Def{ID: point.SeriesID(i), Labels: point.MakeLabels("__name__", fmt.Sprintf("cpu_usage_something_%d", i%101), "arch", "x64",
			"datacenter", "eu-central-1a", "hostname", host, "os", "Ubuntu16.04LTS", "rack", rack, "region", "eu-central-1", "service", fmt.Sprint(i/101%20),
			"service_environment", "production", "service_version", "1", "team", "NYC")}
	}
	return defs
}

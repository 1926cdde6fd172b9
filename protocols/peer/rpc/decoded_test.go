package rpc

import (
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// equalRows are so many rows that compress to a few kilobytes.
func equalRows(n int) *peer.Insert {
	return &peer.Insert{Level: point.All, Stamp: 1, IDs: make([]point.SeriesID, n), Times: make([]point.Nanos, n), Values: make([]float64, n)}
}

// TestInsertsThatUnpackToMuchAreDecodedInTurn: a million equal rows are a hundred bytes on their way and 28 MB decoded, and the server counted the hundred: a thousand such inserts,
// or a few groups of 256, filled its memory.
func TestInsertsThatUnpackToMuchAreDecodedInTurn(t *testing.T) {
	m := newMemory()
	m.gate = make(chan struct{})
	addr, srv := serve(t, m, Settings{DecodedBytesMax: 40 << 20})
	st := openStream(t, dial(t, addr, DialSettings{SilenceMax: time.Minute})) // a busy machine decodes 28 MB for longer than 2 s
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				err := st.Insert(t.Context(), equalRows(frame.RowsMax))
				if fault.Is(err, fault.Throttled) { // on a busy machine it waits for longer than roomWait
					continue
				}
				if err != nil {
					t.Error(err)
				}
				return
			}
		})
	}
	m.until(t, "one is at the gate", func() bool { return m.waiting == 1 })
	if srv.decoded.TryAcquire(20 << 20) {
		t.Error("there is room beside an insert that needs 28 MB of 40")
	}
	if n := srv.InsertBytes(); n < 28<<20 {
		t.Errorf("%d bytes of inserts are booked", n)
	}
	close(m.gate)
	wg.Wait()
	if len(m.got) != 4 {
		t.Errorf("%d inserts are stored", len(m.got))
	}
	m.until(t, "their memory is given back", func() bool { return srv.InsertBytes() == 0 })
	if !srv.decoded.TryAcquire(40 << 20) {
		t.Error("room is missing after them")
	}
}

// TestAGroupIsCountedAsItUnpacks before there is memory for its rows.
func TestAGroupIsCountedAsItUnpacks(t *testing.T) {
	var e insertEncoder
	var all []*peer.Insert
	for nonce := range uint64(3) {
		in := equalRows(100_000)
		in.Staging = &peer.Staging{Do: peer.Forget, Nonce: nonce + 1}
		all = append(all, in)
	}
	b, err := e.encodeGroup(all)
	if err != nil {
		t.Fatal(err)
	}
	var d groupDecoder
	defer d.free()
	rest, err := d.cutHead(b[recordLen:])
	if err != nil {
		t.Fatal(err)
	}
	if n := d.decodedMembers(rest); n < 3*100_000*28 || n > 3*100_000*50 {
		t.Errorf("three times 100,000 rows in %d bytes are counted as %d", len(b), n)
	}
	if n := d.decodedMembers(rest[:len(rest)-1]); n < 2*100_000*28 {
		t.Errorf("without the last byte they are counted as %d", n)
	}
	if _, err := d.decodeMembers(rest); err != nil {
		t.Error(err)
	}
}

// TestDefinitionsDoNotExplode: a record of definitions could unpack to 64 MiB, which each stream kept until its end.
func TestDefinitionsDoNotExplode(t *testing.T) {
	long := point.MakeLabels("__name__", "m", "v", string(make([]byte, 60_000)))
	e := new(defineEncoder)
	w := &e.labels
	w.Reset()
	var body []byte
	for range 350 {
		w.b = append(w.b, 0)
		w.add(long)
	}
	body = append(body, 0x5e, 1, 0, 0)
	body = append(body, byte(len(w.b)), byte(len(w.b)>>8), byte(len(w.b)>>16), byte(len(w.b)>>24))
	body = appendS2(body, w.b)
	if _, err := new(defineDecoder).decode(body); !fault.Is(err, fault.Corrupt) {
		t.Errorf("%d bytes that stand for 21 MB of labels: %v", len(body), err)
	}
	var defs []peer.Def
	for i := range 64 {
		defs = append(defs, peer.Def{ID: point.SeriesID(i), Labels: long})
	}
	for len(defs) > 0 {
		b, n := e.encode(recordDefine, defs)
		if _, err := new(defineDecoder).decode(b[recordLen:]); err != nil {
			t.Errorf("what a gateway sends: %v", err)
		}
		defs = defs[n:]
	}
}

package rpc

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// linkExamples is a record of each kind.
func linkExamples(t testing.TB) map[string][]byte {
	h := linkGreeting{LinkHello: peer.LinkHello{Server: "s1", Boot: 1<<63 + 5, Store: [16]byte{1, 2, 15: 16}, Capabilities: peer.CanFreeze},
		versionMin: 1, versionMax: 3, frameWindow: 80 << 20, pieceWindow: 4 << 20}
	numbers := func(kind linkType, n ...byte) []byte {
		b := beginLinkRecord(nil, kind)
		for _, x := range n {
			b = append(b, x, 0, 0, 0, 0, 0, 0, 1)
		}
		return endLinkRecord(b, 0, 0)
	}
	out := map[string][]byte{"hello": h.append(nil), "credit": numbers(linkCredit, 7, 8), "ping": numbers(linkPing, 9), "pong": numbers(linkPong, 9),
		"ask": numbers(linkAsk, 10, 11), "grant": numbers(linkGrant, 12), "kept": numbers(linkKept, 13)}
	for i, m := range someMessages() {
		b, err := appendLinkMessage(nil, &someRoute, m)
		if err != nil {
			t.Fatal(err)
		}
		out[fmt.Sprintf("%02d-%T", i, m)[:2]+fmt.Sprintf("%T", m)[len("*peer"):]] = b
	}
	return out
}

// readLink reads all of a record, as a link does.
func readLink(b []byte) (any, error) {
	r, rest, err := cutLinkRecord(b)
	if err != nil {
		return nil, err
	}
	if len(rest)+len(r.body) > 0 {
		return nil, errLinkHead(r.kind)
	}
	if r.kind == linkHello {
		return decodeGreeting(r.head)
	}
	if r.kind < linkBegin {
		h := headReader{b: r.head}
		numbers := []uint64{h.u64()}
		if r.kind == linkCredit || r.kind == linkAsk {
			numbers = append(numbers, h.u64())
		}
		if h.bad || len(h.b) > 0 || r.kind < linkCredit || r.kind > linkKept {
			return nil, errLinkHead(r.kind)
		}
		return numbers, nil
	}
	var route peer.Route
	m, err := decodeLinkMessage(r.kind, r.head, &route, new(tableNames))
	if err != nil {
		return nil, err
	}
	return []any{route, m}, nil
}

func TestLinkRecordsAreAsInTheGoldenFiles(t *testing.T) {
	for name, b := range linkExamples(t) {
		path := filepath.Join("testdata", "link", name+".hex")
		if *update {
			if err := os.WriteFile(path, []byte(hex.EncodeToString(b)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if want, err := hex.DecodeString(string(bytes.TrimSpace(text))); err != nil || !bytes.Equal(b, want) {
			t.Errorf("%s is now written as\n%x, was\n%x (%v)", name, b, want, err)
		}
	}
}

func TestLinkMessagesReadBack(t *testing.T) {
	for _, m := range someMessages() {
		b, err := appendLinkMessage(nil, &someRoute, m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readLink(b)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]any{someRoute, m}, got); d != "" {
			t.Error(d)
		}
	}
}

func TestCutAndFlippedLinkRecordsAreCorrupt(t *testing.T) {
	for name, b := range linkExamples(t) {
		for n := range b {
			if _, err := readLink(b[:n]); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s cut to %d of %d bytes: %v, want corrupt", name, n, len(b), err)
			}
		}
		for i := range 8 * len(b) {
			flipped := bytes.Clone(b)
			flipped[i/8] ^= 1 << (i % 8)
			if got, err := readLink(flipped); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s with bit %d of byte %d flipped: %v, %v, want corrupt", name, i%8, i/8, got, err)
			}
		}
	}
}

func TestLinkMessagesOverTheirBoundsAreNotSent(t *testing.T) {
	for _, m := range []peer.LinkMessage{
		&peer.ChainBegin{Order: make([]peer.LinkMember, peer.LinkMembersMax+1)},
		&peer.SegmentOffer{Info: make([]byte, peer.LinkInfoBytesMax+1)},
		&peer.ChainBegin{Order: []peer.LinkMember{{Server: string(make([]byte, 256))}}},
	} {
		if b, err := appendLinkMessage([]byte{1}, &someRoute, m); !fault.Is(err, fault.TooLarge) || len(b) != 1 {
			t.Errorf("%T: %v, and %d bytes", m, err, len(b))
		}
	}
	if _, err := appendLinkMessage(nil, &peer.Route{Table: string(make([]byte, peer.LinkTableBytesMax+1))}, &peer.ChainPong{}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("a long table: %v", err)
	}
}

// FuzzLinkRecord: a readable record is the same after it is written and read again.
func FuzzLinkRecord(f *testing.F) {
	for _, b := range linkExamples(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= linkRecordLen { // the sum is right, so that the bytes behind it are read
			b = endLinkRecord(bytes.Clone(b), 0, 0)
		}
		got, err := readLink(b)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Errorf("%v, want corrupt", err)
			}
			return
		}
		var again []byte
		switch m := got.(type) {
		case linkGreeting:
			again = m.append(nil)
		case []any:
			route := m[0].(peer.Route)
			if again, err = appendLinkMessage(nil, &route, m[1].(peer.LinkMessage)); err != nil {
				t.Fatal(err)
			}
		default:
			return
		}
		back, err := readLink(again)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(got, back, cmp.AllowUnexported(linkGreeting{})); d != "" {
			t.Error(d)
		}
	})
}

// FuzzLinkStream: on any input a link ends or goes on; it does not panic, and keeps nothing beyond its windows.
func FuzzLinkStream(f *testing.F) {
	var all []byte
	for _, b := range linkExamples(f) {
		all = append(all, b...)
	}
	f.Add(all)
	f.Add(append(endLinkRecord(append(appendRoute(beginLinkRecord(nil, linkFrame), &someRoute), 3), 0, 3), 1, 2, 3))
	f.Add(append(endLinkRecord(append(appendRoute(beginLinkRecord(nil, linkPiece), &someRoute), 3, 4), 0, 3), 1, 2, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		for at := 0; len(b)-at >= linkRecordLen; { // right sums, as far as the lengths go
			r := b[at:]
			head, body := int(r[4])|int(r[5])<<8, int(r[8])|int(r[9])<<8
			r[6], r[7], r[10], r[11] = 0, 0, 0, 0
			if linkRecordLen+head+body > len(r) {
				break
			}
			_ = endLinkRecord(r[:linkRecordLen+head], 0, body)
			at += linkRecordLen + head + body
		}
		ls, err := NewLinks(LinkSettings{Self: peer.LinkHello{Server: "a"}}, newEar())
		if err != nil {
			t.Fatal(err)
		}
		defer ls.Close()
		other := ls.greeting("other")
		ctx, cancel := context.WithCancelCause(t.Context())
		l := newLink(ctx, cancel, ls, nil, other, other, false)
		buf, _ := pooled(b)
		defer buf.Free()
		if err := l.takeMessage(buf); err != nil && !fault.Is(err, fault.Corrupt) {
			t.Errorf("%v, want corrupt", err)
		}
		if p := l.partly; p != nil {
			p.buf.Free()
		}
	})
}

package lead

import (
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/storage/lead/rules"
)

func TestSeenEntry(t *testing.T) {
	f := func(s rules.Seen, golden string) {
		t.Helper()
		if got := string(encodeSeen(s)); got != golden {
			t.Errorf("an entry is %s, want %s", got, golden)
		}
		if got, err := decodeSeen("cpu", []byte(golden)); err != nil || got != s {
			t.Errorf("read %v, %v", got, err)
		}
		for n := range golden {
			if _, err := decodeSeen("cpu", []byte(golden[:n])); !fault.Is(err, fault.Corrupt) {
				t.Errorf("the first %d bytes: %v, want corrupt", n, err)
			}
		}
	}
	f(rules.Seen{Table: "cpu", Seq: 1<<64 - 1}, `{"v":1,"seq":18446744073709551615}`) // as builds before the transaction wrote it
	f(rules.Seen{Table: "cpu", Seq: 7, Txn: peer.TxnID{0xab, 15: 1}}, `{"v":1,"seq":7,"txn":"ab000000000000000000000000000001"}`)
	for _, bad := range []string{`{"v":2,"seq":1}`, `{"v":1,"seq":1,"txn":"ab"}`, `{"v":1,"seq":1,"txn":"xy000000000000000000000000000001"}`,
		`{"v":1,"seq":1,"txn":"ab00000000000000000000000000000100"}`} {
		if _, err := decodeSeen("cpu", []byte(bad)); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v, want corrupt", bad, err)
		}
	}
}

package mapstore

import (
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TestChoose plays testdata/choose.txt: the files of one sequence number, and what servers acted by, a line each.
//
//	choose need=2 [all]            all: every server named the transaction it acted by
//	8 A on s1 s2 [before C on s3]  a file; its successor is on s3
//	s4 acted by 8 A
func TestChoose(t *testing.T) {
	datadriven.RunTest(t, "testdata/choose.txt", func(t *testing.T, d *datadriven.TestData) string {
		var need int
		d.ScanArgs(t, "need", &need)
		var of []Candidate
		var witnesses []Witness
		for line := range strings.Lines(d.Input) {
			words := strings.Fields(line)
			if words[1] == "acted" {
				witnesses = append(witnesses, Witness{topology.ServerID(words[0]), peer.Acted{Txn: peer.TxnID{words[4][0]}, Seq: uint64(words[3][0] - '0')}})
				continue
			}
			c := Candidate{Txn: peer.TxnID{words[1][0]}, Seq: uint64(words[0][0] - '0')}
			for i := 3; i < len(words); i++ {
				if words[i] == "before" {
					c.Follower = topology.ServerID(words[i+3])
					break
				}
				c.Holders = append(c.Holders, topology.ServerID(words[i]))
			}
			of = append(of, c)
		}
		at, by, err := choose("cpu", need, of, witnesses, d.HasArg("all"))
		switch {
		case err != nil:
			return err.Error() + "\n"
		case at < 0:
			return "what they stand on\n"
		case by == "":
			return string(of[at].Txn[:1]) + ", on a majority\n"
		}
		return string(of[at].Txn[:1]) + ", as " + string(by) + " shows\n"
	})
}

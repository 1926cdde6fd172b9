package administration

import (
	"fmt"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// overdueMax is how long staged rows may wait for the leader of their partition before that is reported: another server leads within seconds where one may.
const overdueMax = 30 * time.Second

// staged reports rows that wait on a server for longer than the change to another leader lasts, and those that fewer servers hold than an ack needs.
func (e *examination) staged(m *topology.Map, id topology.ServerID, held *peer.StagedStats) {
	subject := fmt.Sprintf("%s on %s", m.Table, id)
	if wait := overdue(held, time.Now()); wait >= overdueMax {
		e.degraded("staged rows", subject, fmt.Sprintf("%d rows wait for the leaders of their partitions, the oldest for %s; they are read", held.Rows-held.Later, since(wait)),
			"see which partitions have no leader, and start the servers that may take them; the rows go there by themselves")
	}
	if need := m.Config.StagedHolders(); held.Sole > 0 && need > 1 {
		e.degraded("staged once", subject, fmt.Sprintf("%d staged rows are held by this server alone, an ack needed %d", held.Sole, need),
			"start the other servers; where one more lives, the rows are staged there within seconds")
	}
}

// deadHolders reports silent servers on which rows may be staged.
func (e *examination) deadHolders() {
	for _, srv := range e.s.Servers {
		if !srv.Live && srv.Staging != "" {
			e.degraded("dead holder", string(srv.ID), "rows may be staged on it, of tables "+strings.Join(strings.Fields(srv.Staging), ", ")+": deletions in these tables are refused, and rows that it alone holds are missing, which answers say",
				"start it, with its store directory")
		}
	}
}

// overdue is how long the oldest staged row could have been with its leader.
func overdue(held *peer.StagedStats, now time.Time) time.Duration {
	if held.Overdue == 0 {
		return 0
	}
	return now.Sub(time.Unix(0, held.Overdue))
}

// StagedProblem describes rows that wait too long for the status page; "": there are none.
func StagedProblem(held []peer.StagedStats, now time.Time) string {
	var longest time.Duration
	var at []string
	for i := range held {
		if wait := overdue(&held[i], now); wait >= overdueMax {
			longest = max(longest, wait)
			at = append(at, held[i].Server)
		}
	}
	if len(at) == 0 {
		return ""
	}
	return fmt.Sprintf("on %s, the oldest for %s", strings.Join(at, ", "), since(longest))
}

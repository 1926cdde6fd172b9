package findings

import (
	"fmt"
	"strings"

	"github.com/spillwaydb/spillway/gateway/ui"
)

// Finding is one fault, as the doctor reports it.
type Finding struct {
	Severity string `json:"severity"` // broken or degraded
	Kind     string `json:"kind"`
	Subject  string `json:"subject"`
	What     string `json:"what"`
	Do       string `json:"do"`
}

// OfStatus finds the faults of a status, each with its remedy; none: the list is empty, not nil.
func OfStatus(s *ui.Status) (report []Finding) {
	add := func(severity, kind, subject, what, do string) {
		report = append(report, Finding{Severity: severity, Kind: kind, Subject: subject, What: what, Do: do})
	}
	report = []Finding{}
	for _, p := range s.Problems {
		if !followsFromSilence(p, s.Servers) {
			add("degraded", "problem", s.Role, p, remedy(p))
		}
	}
	for _, srv := range s.Servers {
		if !srv.Live {
			// Partitions that only this server could serve are reported below, as partitions without a leader.
			add("degraded", "dead server", srv.ID, "it "+NoHeartbeat("sends", s.Tables), "start it, with its data directory; `spillway server list --servers …` says what only it holds")
		}
	}
	for _, t := range s.Tables {
		for i := range t.Partitions {
			p := &t.Partitions[i]
			subject := fmt.Sprintf("%s p%d", t.Name, p.ID)
			switch {
			case p.Damaged != "":
				add("broken", "damaged partition", subject, p.Damaged, "restore the file from a backup and restart, or drop the partition")
			case p.Offline != "":
				add("broken", "offline partition", subject, p.Offline, "spillway partition online")
			case p.Leader == "" && !p.Ahead:
				add("broken", "partition without a leader", subject, "no server leads it", "look at its servers: "+strings.Join(p.Servers, " "))
			}
			if p.Unflushed != "" {
				add("degraded", "partition not flushed", subject, p.Unflushed, "see docs/runbooks/SpillwayFlushFails.md")
			}
		}
	}
	if !s.Whole {
		add("degraded", "not all seen", s.Role, "the token may not read all of the process", "use one that may")
	}
	return report
}

// followsFromSilence reports whether a problem is only that a server is silent, which is a finding of its own.
func followsFromSilence(problem string, servers []ui.Server) bool {
	for _, srv := range servers {
		if !srv.Live && strings.HasPrefix(problem, SilentServer(srv.ID)) && strings.Contains(problem, "no heartbeat") {
			return true
		}
	}
	return false
}

// remedies are the next steps for problems of the status page, by a part of their text.
var remedies = []struct{ in, do string }{
	{SomeSizes, "ask again in a few seconds: a server that was just started answers then; else look at its log"},
	{"no heartbeat", "start the server"},
	{"store was fenced", "look at the device: dmesg and SMART data; docs/runbooks/SpillwayStoreFenced.md. A day later this is gone by itself"},
	{"store is fenced", "see docs/runbooks/SpillwayStoreFenced.md"},
	{"disk is full", "make room on the disk; docs/runbooks/SpillwayStoreReadOnly.md"},
	{"does not join: ", "set its peer.advertise right, and restart it"},
	{"is reached by no process", "set its peer.advertise to an address at which the others reach it, and for which its certificate is, or open the way there; then restart it"},
	{"This process does not reach", "open the way from its host to these addresses: look at firewalls, names and certificates; docs/runbooks/SpillwayServerUnreached.md"},
	{"takes no rows", "make room on its disk; docs/runbooks/SpillwayStoreReadOnly.md"},
	{"coordination store has not answered", "look at etcd; docs/runbooks/SpillwayMapsAreOld.md"},
	{"cannot be written into a segment", "see docs/runbooks/SpillwayFlushFails.md"},
	{"is damaged", "see docs/runbooks/SpillwayPartitionDamaged.md"},
	{"wait in staging", "wait; if they stay, docs/runbooks/SpillwayStagedRowsWait.md"},
	{"settings could not be read again", "its log names the mistakes, and so do `spillway config check FILE` and `spillway token check`; mend them and reload"},
	{"files that no catalogue entry names", "see docs/runbooks/SpillwayLostAndFound.md"},
}

// remedy is the next step for a problem.
func remedy(problem string) string {
	for _, r := range remedies {
		if strings.Contains(problem, r.in) {
			return r.do
		}
	}
	if strings.Contains(problem, "docs/runbooks/") {
		return "follow that page"
	}
	return "look at the log of the process; docs/runbooks/README.md lists what is known of each alert"
}

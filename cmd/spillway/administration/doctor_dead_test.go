package administration

import (
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestDoctorRecommendsNoDrainThatCannotEnd: of three servers that keep three copies one died. "Drain it and remove it" was the advice, also where that had been done: the drain
// had no server to copy to.
func TestDoctorRecommendsNoDrainThatCannotEnd(t *testing.T) {
	f := func(servers string, drained bool, want, not string) {
		t.Helper()
		m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour, Replicas: 3})
		if err != nil {
			t.Fatal(err)
		}
		e := examination{admin: &admin{}, live: map[topology.ServerID]bool{}, s: master.State{Tables: []*topology.Map{m}}}
		for _, id := range strings.Fields(servers) {
			s := master.Server{Server: registry.Server{ID: topology.ServerID(id), Host: id}, Live: id != "dead"}
			if drained && id == "dead" {
				s.Drain = &lease.Note{}
			}
			e.s.Servers = append(e.s.Servers, s)
		}
		do := e.deadDo(e.s.Servers[len(e.s.Servers)-1], false)
		if !strings.Contains(do, "--id dead --replace-store") || !strings.Contains(do, want) || strings.Contains(do, not) {
			t.Errorf("%s, drained %v: %q, want %q, not %q", servers, drained, do, want, not)
		}
	}
	if do := (&examination{admin: &admin{}}).deadDo(master.Server{}, true); !strings.Contains(do, "or remove it") {
		t.Errorf("of a server that holds nothing: %q", do)
	}
	f("s1 s2 dead", false, "start a storage server on a host of its own first", "drain")
	f("s1 s2 dead", true, "start a storage server on a host of its own first", "drain")
	f("s1 s2 s3 dead", false, "or drain it and remove it", "too few")
	f("s1 s2 s3 dead", true, "until its drain has left it no placements", "or drain it")
}

// TestDoctorGivesNoDirectoryUpWhoseRowsNoLiveServerHas: the advice to replace or remove a dead server came also where its maps were not there, rows were staged on it, or the
// other server with all rows was dead as well.
func TestDoctorGivesNoDirectoryUpWhoseRowsNoLiveServerHas(t *testing.T) {
	f := func(what string, change func(e *examination)) {
		t.Helper()
		dead := func(id topology.ServerID) master.Server {
			return master.Server{Server: registry.Server{ID: id, Host: string(id)}}
		}
		e := examination{admin: &admin{}, live: map[topology.ServerID]bool{}, s: master.State{Servers: []master.Server{dead("s1"), dead("s2")}}}
		change(&e)
		e.dead()
		if r := e.report[0]; !strings.HasPrefix(r.Do, "start it, with its store directory") || strings.Contains(r.Do, "remove") || strings.Contains(r.Do, "replace") {
			t.Errorf("%s: %q, %q", what, r.What, r.Do)
		}
	}
	f("a table without a map", func(e *examination) { e.admin.lacking = map[string]error{"cpu": nil} })
	f("staged rows", func(e *examination) { e.s.Servers[0].Staging = "cpu" })
	f("both that have all rows are dead", func(e *examination) {
		e.s.Leases = map[lease.Partition]lease.Lease{{Table: "cpu", ID: 1}: {State: lease.Held, InSync: []lease.Member{{Server: "s1"}, {Server: "s2"}}}}
	})
}

// TestDoctorCallsRowsBrokenThatNoProcessReaches: the only server with all rows of a partition was called degraded where it had moved out of reach, and was counted among the hosts on which
// copies can be made.
func TestDoctorCallsRowsBrokenThatNoProcessReaches(t *testing.T) {
	e := examination{admin: &admin{}, s: master.State{Servers: []master.Server{{Server: registry.Server{ID: "s1", Host: "h1", Unreached: "i/o timeout"}, Live: true}}}}
	f := func(want string) {
		t.Helper()
		e.report = nil
		e.dead()
		if r := e.report[0]; r.Severity != want || r.Kind != "unreached server" {
			t.Errorf("%+v, want %s", r, want)
		}
	}
	f("degraded")
	e.s.Leases = map[lease.Partition]lease.Lease{{Table: "cpu", ID: 1}: {State: lease.Held, InSync: []lease.Member{{Server: "s1"}}}}
	f("broken")
	if n := e.hostsWithout("s2"); n != 0 {
		t.Errorf("%d hosts for copies", n)
	}
}

package staged

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// servers is a registry as a gateway has it cached.
type servers []registry.Server

func (s servers) All() []registry.Server      { return s }
func (s servers) Age(time.Time) time.Duration { return 0 }
func (s servers) Staging(table string) (all []topology.ServerID) {
	for i := range s {
		if s[i].Stages(table) {
			all = append(all, s[i].ID)
		}
	}
	return all
}

// TestADeletionFindsAllServersWithStagedRows: a is dead, b, c and d live. A gateway's cache may be older than an announcement.
func TestADeletionFindsAllServersWithStagedRows(t *testing.T) {
	now := time.Unix(1700000000, 0)
	rows := func(of string) servers { // "t" at a server: it announces table t
		var all servers
		for i, id := range []topology.ServerID{"a", "b", "c", "d"} {
			s := registry.Server{ID: id}
			if of[i] == 't' {
				s.Staging = registry.StagingOf([]string{"t"})
			}
			all = append(all, s)
		}
		return all
	}
	away := fault.Errorf(fault.Unavailable, "the store is away")
	for _, c := range []struct {
		name   string
		cached string
		fresh  string // "": the store is away
		noted  []topology.ServerID
		stages bool
		want   []topology.ServerID
		fails  bool
	}{
		{name: "nothing is staged", cached: "----", fresh: "----", stages: true},
		{name: "a live server has rows", cached: "----", fresh: "--t-", want: []topology.ServerID{"b", "c", "d"}},
		{name: "a dead server has rows", cached: "t---", fresh: "t---", want: []topology.ServerID{"a", "b", "c", "d"}},
		{name: "the announcement is old", cached: "-t--", fresh: "----", want: []topology.ServerID{"b", "c", "d"}},
		{name: "it staged some itself", cached: "----", fresh: "----", noted: []topology.ServerID{"a"}, want: []topology.ServerID{"a", "b", "c", "d"}},
		{name: "the store is away, and gateways stage", cached: "----", stages: true, fails: true},
		{name: "the store is away, and rows of some table are staged", cached: "--t-", fails: true},
		{name: "the store is away, and nothing was ever staged", cached: "----"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := New(rows(c.cached), func(s topology.ServerID) bool { return s != "a" }, c.stages)
			v.Note(now, "t", c.noted)
			got, err := v.Stagers(t.Context(), now.Add(time.Second), "t", func(context.Context) ([]registry.Server, error) {
				if c.fresh == "" {
					return nil, away
				}
				return rows(c.fresh), nil
			})
			if (err != nil) != c.fails || !slices.Equal(got, c.want) {
				t.Errorf("%v, %v; want %v", got, err, c.want)
			}
		})
	}
}

// unread is a registry that was not read for a while.
type unread struct{ servers }

func (unread) Age(time.Time) time.Duration { return follow.DoubtAge }

// TestRowsAreNotMissingWhereAnnouncementsCannotBeRead: a gateway that is cut off from the coordination store did not see that b announced the table, and answered
// without the rows that are staged there. It asks all servers.
func TestRowsAreNotMissingWhereAnnouncementsCannotBeRead(t *testing.T) {
	now := time.Unix(1700000000, 0)
	known := servers{{ID: "a"}, {ID: "b"}}
	live := func(topology.ServerID) bool { return true }
	if got := New(unread{known}, live, true).Of(now, "t"); !slices.Equal(got, []topology.ServerID{"a", "b"}) {
		t.Errorf("%q are asked", got)
	}
	if got := New(unread{known}, live, false).Of(now, "t"); len(got) > 0 {
		t.Errorf("%q are asked where nothing is staged", got)
	}
	if got := New(known, live, true).Of(now, "t"); len(got) > 0 {
		t.Errorf("%q are asked by announcements that were just read", got)
	}
}

// TestHoldersLieApart: the holders of a frame lie in zones of their own where there are as many, else on hosts of their own, whichever comes first. Two in one zone would both be lost with it.
func TestHoldersLieApart(t *testing.T) {
	in := func(id topology.ServerID, host, zone string) registry.Server {
		return registry.Server{ID: id, Host: host, Zone: zone}
	}
	two := servers{in("a", "h1", "east"), in("b", "h2", "east"), in("c", "h3", "east"), in("d", "h4", "west")}
	one := servers{in("a", "h1", "east"), in("b", "h1", "east"), in("c", "h2", "east")}
	none := servers{in("a", "h1", ""), in("b", "h1", ""), in("c", "h2", "")}
	for _, c := range []struct {
		name  string
		all   servers
		away  topology.ServerID
		n     int
		apart func(s registry.Server) string
	}{
		{"two zones", two, "", 2, func(s registry.Server) string { return s.Zone }},
		{"two zones and three holders", two, "", 3, func(s registry.Server) string { return s.Host }},
		{"the other zone is away", two, "d", 2, func(s registry.Server) string { return s.Host }},
		{"one zone, two hosts", one, "", 2, func(s registry.Server) string { return s.Host }},
		{"no zones, two hosts", none, "", 2, func(s registry.Server) string { return s.Host }},
	} {
		v := New(c.all, func(s topology.ServerID) bool { return s != c.away }, true)
		first := map[topology.ServerID]bool{}
		for nonce := range uint64(64) {
			got, err := v.Holders(c.n, nonce, nil)
			if err != nil || len(got) != c.n {
				t.Fatalf("%s: %v, %v", c.name, got, err)
			}
			first[got[0]] = true
			seen := map[string]bool{}
			for _, id := range got {
				at := c.apart(c.all[slices.IndexFunc(c.all, func(s registry.Server) bool { return s.ID == id })])
				if seen[at] || id == c.away {
					t.Errorf("%s, nonce %d: %v", c.name, nonce, got)
				}
				seen[at] = true
			}
		}
		if len(first) < len(c.all)-1 {
			t.Errorf("%s: frames begin at %v alone", c.name, first)
		}
	}
	if got, err := New(two, func(s topology.ServerID) bool { return s == "d" }, true).Holders(2, 1, nil); err == nil {
		t.Errorf("%v hold a frame that two have to", got)
	}
}

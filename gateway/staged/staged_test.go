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

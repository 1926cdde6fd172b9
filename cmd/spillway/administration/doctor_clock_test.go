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

// TestTheDoctorComparesTheClockOfItsMachine with the servers' clocks, and names a gateway of its own machine if that clock is wrong.
func TestTheDoctorComparesTheClockOfItsMachine(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		ahead   time.Duration
		servers int
		found   string
	}{
		{0, 3, ""},
		{30 * time.Second, 3, ""},
		{-3 * time.Hour, 3, "-3h0m0s ahead"},
		{3 * time.Hour, 2, "3h0m0s ahead"},
		{3 * time.Hour, 1, ""}, // which of two clocks is wrong?
	} {
		var e examination
		for _, id := range []topology.ServerID{"s1", "s2", "s3"}[:c.servers] {
			e.s.Servers = append(e.s.Servers, master.Server{Server: registry.Server{ID: id}, Live: true, Beat: lease.Beat{Time: now}})
		}
		e.ownClock(now.Add(c.ahead).UnixNano())
		said := ""
		for _, f := range e.report {
			said += f.Subject + ": " + f.What
		}
		if (c.found == "") != (said == "") || !strings.Contains(said, c.found) {
			t.Errorf("%v ahead of %d servers: it says %q", c.ahead, c.servers, said)
		}
	}
}

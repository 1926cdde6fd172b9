package administration

import (
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
)

func TestDoctorReportsServersThatDifferInCopies(t *testing.T) {
	f := func(servers, want string) {
		t.Helper()
		e := examination{}
		for i, copies := range strings.Fields(servers) {
			copies, dead := strings.CutPrefix(copies, "dead:")
			copies = strings.TrimPrefix(copies, "?")
			e.s.Servers = append(e.s.Servers, master.Server{Server: registry.Server{ID: topology.ServerID([]string{"s1", "s2", "s3"}[i]), Copies: copies}, Live: !dead})
		}
		e.mixedCopies()
		got := ""
		for _, r := range e.report {
			got += r.What
		}
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", servers, got, want)
		}
	}
	f("on on on", "")
	f("off off off", "")
	f("on off on", "on at s1 s3 and off at s2")
	f("on dead:off on", "")
	f("on ? on", "") // an older build does not say
}

package administration

import (
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
)

// TestDoctorNamesTheServerWithTheSlowDisk: its copies are out of sync, and nothing else says why.
func TestDoctorNamesTheServerWithTheSlowDisk(t *testing.T) {
	e := examination{}
	e.s.Servers = []master.Server{
		{Server: registry.Server{ID: "s1"}, Live: true, Beat: lease.Beat{Fsync: 5 * time.Millisecond}},
		{Server: registry.Server{ID: "s2"}, Live: true, Beat: lease.Beat{Fsync: 1300 * time.Millisecond, SlowDisk: true}},
	}
	e.dead()
	if len(e.report) != 1 || e.report[0].Kind != "slow disk" || e.report[0].Subject != "s2" || !strings.Contains(e.report[0].What, "1.3s") {
		t.Errorf("found %+v, want the slow disk of s2, with 1.3s", e.report)
	}
}

// TestDoctorNamesTheServerWhoseDiskHangs, also where it may not leave the lists: the disk gives no error, and nothing else names it.
func TestDoctorNamesTheServerWhoseDiskHangs(t *testing.T) {
	for _, slow := range []bool{true, false} {
		e := examination{}
		e.s.Servers = []master.Server{
			{Server: registry.Server{ID: "s1"}, Live: true, Beat: lease.Beat{Fsync: 5 * time.Millisecond}},
			{Server: registry.Server{ID: "s2"}, Live: true, Beat: lease.Beat{Fsync: 34 * time.Second, SlowDisk: slow}},
		}
		e.dead()
		if len(e.report) != 1 || e.report[0].Kind != "disk hangs" || e.report[0].Subject != "s2" || !strings.Contains(e.report[0].What, "34s") ||
			strings.Contains(e.report[0].What, "releases the partitions") != slow {
			t.Errorf("slow %v: found %+v, want the disk of s2 that hangs, for 34s", slow, e.report)
		}
	}
}

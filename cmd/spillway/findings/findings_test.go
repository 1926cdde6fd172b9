package findings

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/gateway/ui"
)

// TestTheDoctorNamesADeadServerOnce, whatever the page says about it, and what to do; what is served all the same is not called broken.
func TestTheDoctorNamesADeadServerOnce(t *testing.T) {
	s := &ui.Status{Whole: true, Role: "gateway", Servers: []ui.Server{{ID: "s1"}, {ID: "s2", Live: true}}, Problems: []string{
		SilentServer("s1") + "at h:1 " + NoHeartbeat("shows", nil) + ".",
		SilentServer("s2") + "at h:2 takes no rows: the store is read-only.",
	}}
	s.Tables = []ui.Table{{Name: "t", Partitions: []ui.Partition{{ID: 1, Leader: "s2"}}}}
	got := OfStatus(s)
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	for _, f := range got {
		if f.Severity != "degraded" || f.Do == "" {
			t.Errorf("%+v", f)
		}
	}
	// Where each partition has a copy elsewhere, its size is known.
	if strings.Contains(got[1].What, "sizes") {
		t.Errorf("%+v", got[1])
	}
	s.Tables[0].Unknown = 1
	if got = OfStatus(s); !strings.Contains(got[1].What, "sizes of what it alone holds are not known") {
		t.Errorf("%+v", got[1])
	}
	s.Tables[0].Partitions[0].Leader = ""
	if got = OfStatus(s); len(got) != 3 || got[2].Severity != "broken" {
		t.Errorf("a partition that nobody leads: %+v", got)
	}
}

// TestSizesOfASilentServerAreNotListedBesideIt: the page and the doctor named one cause twice.
func TestSizesOfASilentServerAreNotListedBesideIt(t *testing.T) {
	for text, want := range map[string]bool{
		SomeSizes + " of table t are not known: the answer is not whole: server s1: no answer in time":         true,
		SomeSizes + " of table t are not known: the answer is not whole: server s1 at h:1: it did not answer":  true,
		SomeSizes + " of table t are not known: the answer is not whole: server s11 at h:1: it did not answer": false,
		"The rows of partition t/1 cannot be written into a segment: server s1: no space left on device":       false,
	} {
		if got := IsOfSilent(text, "s1"); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}

// TestRemediesNamePagesThatExist: a next step that leads nowhere is none.
func TestRemediesNamePagesThatExist(t *testing.T) {
	page := regexp.MustCompile(`docs/runbooks/\w+\.md`)
	for _, r := range remedies {
		if got := remedy("x " + r.in + " y"); got != r.do {
			t.Errorf("%q: %q, want %q", r.in, got, r.do)
		}
		for _, name := range page.FindAllString(r.do, -1) {
			if _, err := os.Stat(filepath.Join("../../..", name)); err != nil {
				t.Error(err)
			}
		}
	}
	for _, text := range []string{"something new", "Copies of partition t/1 hold different rows; see docs/runbooks/SpillwayCopiesDiffer.md."} {
		if strings.TrimSpace(remedy(text)) == "" {
			t.Errorf("%q has no next step", text)
		}
	}
}

package runner

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/storage/chain"
)

// TestRowsAreNotStagedForAMemberWhoseServerIsBusy: the server of a follower was late with its pings, and rows were refused and staged, which was work for two more servers.
// As long as anything comes over the link, they wait for it; once the link is gone, they do not.
func TestRowsAreNotStagedForAMemberWhoseServerIsBusy(t *testing.T) {
	const stalled = 500 * time.Millisecond
	_, nodes, end := runSome(t, 2, chain.Settings{StalledAfter: stalled, SilentAfter: time.Hour, SlowAfter: time.Hour})
	defer end()
	head, follower := nodes[0], nodes[1]
	for follower.chains.find(theKey) == nil {
		time.Sleep(time.Millisecond)
	}
	link, _ := head.links.Link(string(follower.self.Server))
	goOn := busy(follower.chains.find(theKey))
	defer goOn()
	began := time.Now()
	for checks := 0; checks < 20; time.Sleep(10 * time.Millisecond) {
		asked, silence := time.Now(), link.Silence()
		err := head.chains.Stalled(theKey)
		if now := time.Now(); asked.Sub(began) < 2*stalled || silence+now.Sub(asked) > stalled/2 { // else this machine lets nothing through
			continue
		}
		if checks++; err != nil {
			t.Fatalf("%v after the last ping, and %v after the server sent something: %v", asked.Sub(began), silence, err)
		}
	}
	follower.links.Close()
	for head.chains.Stalled(theKey) == nil {
		time.Sleep(time.Millisecond)
	}
}

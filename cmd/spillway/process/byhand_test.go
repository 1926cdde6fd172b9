package process

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/coord/remote"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestAdministratorsWriteNoHeartbeatButInThePlaceOfAMissingOne: with --servers, the commands server remove and partition force-join failed for a server without a heartbeat row.
func TestAdministratorsWriteNoHeartbeatButInThePlaceOfAMissingOne(t *testing.T) {
	store := mem.New()
	s := remote.Open(remote.Serve(store, byHand), store.Close)
	key, inPlace := lease.BeatKey("s1"), lease.InPlace("s1", "01", time.Now())
	live := inPlace
	live.Missing = false
	absent := []coord.Condition{{Key: key}}
	for name, c := range map[string]struct {
		conditions []coord.Condition
		write      coord.Write
	}{
		"a heartbeat":             {absent, coord.Write{Key: key, Value: live.Encode()}},
		"without the comparison":  {nil, coord.Write{Key: key, Value: inPlace.Encode()}},
		"over one that is there":  {[]coord.Condition{{Key: key, Revision: 7}}, coord.Write{Key: key, Value: inPlace.Encode()}},
		"compared with another":   {[]coord.Condition{{Key: lease.BeatKey("s2")}}, coord.Write{Key: key, Value: inPlace.Encode()}},
		"a deletion":              {absent, coord.Write{Key: key, Delete: true}},
		"what cannot be decoded":  {absent, coord.Write{Key: key, Value: []byte("x")}},
		"the row of the master's": {nil, coord.Write{Key: "master", Value: []byte("x")}},
	} {
		if _, _, err := s.Commit(t.Context(), c.conditions, []coord.Write{c.write}); !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, ok, err := s.Commit(t.Context(), absent, []coord.Write{{Key: key, Value: inPlace.Encode()}}); !ok || err != nil {
		t.Errorf("a row in the place of a missing one: %v %v", ok, err)
	}
}

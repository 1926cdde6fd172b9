package lead

import (
	"encoding/json"

	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
)

// The lives of a store directory (registry.Lives) are stored in the brick's catalogue:
//
//	key     "m/life"
//	value   {"v":1,"known":{"n":…,"name":"…"},"tried":[{"n":…,"name":"…"} …]}      tried: absent where there is none
const (
	lifeKey     = "m/life"
	lifeVersion = 1
	livesMax    = 64 // of tried: far more than are written
)

type lifeEntry struct {
	V     int             `json:"v"`
	Known registry.Life   `json:"known"`
	Tried []registry.Life `json:"tried,omitempty"`
}

func encodeLives(l registry.Lives) []byte {
	b, err := json.Marshal(lifeEntry{V: lifeVersion, Known: l.Known, Tried: l.Tried})
	if err != nil {
		fault.Bug("lives of a directory do not encode: %v", err)
	}
	return b
}

func decodeLives(b []byte) (l registry.Lives, err error) {
	var e lifeEntry
	if err := json.Unmarshal(b, &e); err != nil {
		return l, fault.Wrap(err, fault.Corrupt, "lives of the directory in the catalogue")
	}
	switch {
	case e.V != lifeVersion:
		return l, fault.Errorf(fault.Corrupt, "lives of the directory in the catalogue have version %d; this build reads version %d", e.V, lifeVersion)
	case len(e.Tried) > livesMax:
		return l, fault.Errorf(fault.Corrupt, "lives of the directory in the catalogue: %d were tried, more than %d", len(e.Tried), livesMax)
	}
	return registry.Lives{Known: e.Known, Tried: e.Tried}, nil
}

// LoadLives returns the lives of the brick's directory; none: it never had one. Errors are Corrupt and the brick's.
func LoadLives(b *brick.Brick) (l registry.Lives, err error) {
	v, ok, err := b.Get([]byte(lifeKey))
	if err != nil || !ok {
		return l, err
	}
	return decodeLives(v)
}

// SaveLives stores the lives of the brick's directory durably.
func SaveLives(d *brick.Brick, l registry.Lives) error {
	b := d.NewBatch()
	defer b.Close()
	b.Set([]byte(lifeKey), encodeLives(l))
	return b.Commit(true)
}

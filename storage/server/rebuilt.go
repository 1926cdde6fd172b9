package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
)

// A catalogue that was not rebuilt exactly may lack entries that only the damaged bytes held: partitions with rows in
// the log alone, deletions, descriptions of metrics. The repair's output says so once, to the operator; users of the
// store see it in every answer until an administrator accepts it.

// rebuiltKey is the catalogue's note that it was rebuilt, and not exactly.
const rebuiltKey = "m/rebuilt"

// rebuiltNote is the JSON value of rebuiltKey.
// Example: {"at":"2026-11-27T09:00:00Z","trouble":"entries were missing"}.
type rebuiltNote struct {
	At      time.Time `json:"at"`
	Trouble string    `json:"trouble"` // the damage of the catalogue
}

func (n *rebuiltNote) String() string {
	return fmt.Sprintf("the store was rebuilt on %s after damage that could not be undone exactly (%s): rows may be missing, or deleted ones be back, until `spillway repair --accept` on the stopped store says that this is known",
		n.At.UTC().Format(time.DateOnly), n.Trouble)
}

func noteRebuilt(entries map[string][]byte, trouble error, now time.Time) error {
	n := rebuiltNote{At: now.UTC(), Trouble: "entries were missing"}
	if trouble != nil {
		n.Trouble = trouble.Error()
	}
	b, err := json.Marshal(n)
	entries[rebuiltKey] = b
	return err
}

// Rebuilt returns the warning, for users of the store, that its catalogue was rebuilt and may lack something; "": it
// was not, or that was accepted.
func (s *Server) Rebuilt() string { return s.rebuilt }

func (s *Server) loadRebuilt() error {
	b, ok, err := s.deps.Brick.Get([]byte(rebuiltKey))
	if err != nil || !ok {
		return err
	}
	var n rebuiltNote
	if err := json.Unmarshal(b, &n); err != nil {
		return fault.Wrap(err, fault.Corrupt, "entry %q of the catalogue", rebuiltKey)
	}
	s.rebuilt = n.String()
	s.deps.Log.Error(s.rebuilt)
	return nil
}

// AcceptRebuilt ends the warnings of a store with a rebuilt catalogue; accepted is their text, "": there were none. No
// process may use the store meanwhile. Errors: Unavailable, Corrupt (it must be repaired first).
func AcceptRebuilt(d brick.Deps, s brick.Settings) (accepted string, err error) {
	r, err := brick.Examine(d, s)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if r.Trouble != nil {
		return "", fault.Annotate(r.Trouble, "the catalogue is damaged: repair it first")
	}
	entries, err := r.Entries()
	if err != nil || entries[rebuiltKey] == nil {
		return "", err
	}
	var n rebuiltNote
	if err := json.Unmarshal(entries[rebuiltKey], &n); err != nil {
		return "", fault.Wrap(err, fault.Corrupt, "entry %q of the catalogue", rebuiltKey)
	}
	delete(entries, rebuiltKey)
	_, err = r.Rebuild(entries, true)
	return n.String(), err
}

// Package mem is a coordination store that lives and dies with its process: for tests and simulations.
package mem

import "github.com/spillwaydb/spillway/metadata/coord"

// New makes an empty store.
func New() coord.Store { return coord.NewRows(nil, 0, nil) }

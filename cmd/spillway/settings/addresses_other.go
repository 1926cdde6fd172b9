//go:build !linux

package settings

import "math"

// addressLimit is a number that never limits: the limit has no meaning here, or another one.
func addressLimit() uint64 { return math.MaxUint64 }

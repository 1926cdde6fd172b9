package point

import "time"

// NarrowMax is the width up to which a partition is narrow: a series has few rows there, so few rows share the cost of its partition, and it receives
// current writes for a moment only.
const NarrowMax = Nanos(10 * time.Minute)

// Narrow reports whether a partition of [lo, hi) is narrow. The two may be any times, as far apart as times can be.
func Narrow(lo, hi Nanos) bool { return uint64(hi)-uint64(lo) <= uint64(NarrowMax) }

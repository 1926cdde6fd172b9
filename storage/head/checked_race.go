//go:build race

package head

// checked puts all memory of heads on the collector's heap, since the race detector does not see mapped memory, and has it overwritten when it is
// released: a reader that is still there is reported, and one that comes later reads no rows.
const checked = true

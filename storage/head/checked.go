//go:build !race

package head

// checked is false: memory is mapped, and is not written when it is released.
const checked = false

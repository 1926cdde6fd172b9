//go:build race

package rows

// checked has every use of room compared with what was used before.
const checked = true

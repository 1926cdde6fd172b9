//go:build race

package rows

// checked has every use of room compared with the uses before it.
const checked = true

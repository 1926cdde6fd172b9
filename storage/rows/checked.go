//go:build !race

package rows

const checked = false

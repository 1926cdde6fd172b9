//go:build !linux

package head

// adviseHuge has nobody to ask here.
func adviseHuge([]byte) {}

//go:build !faults

package process

import "github.com/cockroachdb/pebble/v2/vfs"

// disk is the file system of the store.
func disk() vfs.FS { return vfs.Default }

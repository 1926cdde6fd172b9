//go:build !faults

package main

import "github.com/cockroachdb/pebble/v2/vfs"

// disk is the file system of the store.
func disk() vfs.FS { return vfs.Default }

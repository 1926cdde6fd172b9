//go:build !linux && !darwin

package brick

import (
	"errors"
	"os"
)

// truncate shortens no file here: it could have other names.
func truncate(uintptr, string, int64) error { return errors.ErrUnsupported }

// linked is unknown here.
func linked(os.FileInfo) bool { return false }

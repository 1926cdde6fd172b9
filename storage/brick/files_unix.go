//go:build linux || darwin

package brick

import "golang.org/x/sys/unix"

// FilesOf asks the file system of a directory.
func FilesOf(dir string) Files {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Files{}
	}
	return Files{Total: s.Files, Free: s.Ffree}
}

//go:build !linux

package processes

import "syscall"

// ownGroup keeps ctrl-C of the terminal from the children: they are stopped in order.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

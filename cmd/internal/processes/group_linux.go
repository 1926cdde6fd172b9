package processes

import "syscall"

// ownGroup keeps ctrl-C of the terminal from the children: they are stopped in order, and die with their parent.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

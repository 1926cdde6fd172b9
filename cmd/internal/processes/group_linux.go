package processes

import "syscall"

// ownGroup keeps ctrl-C of the terminal from the children, who are stopped in order; they die with their parent.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

package processes

import (
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

// Ports are chosen now and bound later by another process. They lie below those that Linux gives to outgoing connections
// (ip_local_port_range begins at 32768): a connection that is made in between cannot use one. Tests that run side by side cannot
// choose the same: each is claimed until the process that chose it ends. Below them are those of make test-package and make test-browser.
const (
	portMin   = 16000
	portCount = 16000
)

func listenAnywhere() (l net.Listener, err error) {
	for range 100 {
		port := portMin + rand.IntN(portCount)
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err != nil {
			continue
		}
		if claim(port) {
			return l, nil
		}
		_ = l.Close()
		err = syscall.EADDRINUSE
	}
	return nil, err
}

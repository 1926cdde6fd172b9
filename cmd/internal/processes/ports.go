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

func listenAnywhere() (net.Listener, error) { return listenIn(portMin, portCount) }

// listenIn listens on one of count ports from a port on. It claims the port first: a port that another has chosen must not be listened on
// for a moment, in which that one's process would find it in use.
func listenIn(from, count int) (net.Listener, error) {
	err := error(syscall.EADDRINUSE)
	for range 100 {
		port := from + rand.IntN(count)
		release, ok := claim(port)
		if !ok {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return l, nil
		}
		release()
	}
	return nil, err
}

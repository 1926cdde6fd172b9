package intake

import (
	"net/netip"
	"time"

	"github.com/spillwaydb/spillway/gateway/recent"
	"github.com/spillwaydb/spillway/protocols/point"
)

// batch begins the batch of a request, and remembers which series were there before it.
func (c *call) batch(t Table) *point.Batch {
	b := point.GetBatch(t.Dict())
	if b.Dict != nil { // else decoding finds it out, and is guarded
		c.known = b.Dict.Len()
	}
	return b
}

// noteSender lists the sender of a decoded batch for the status page; the function it returns is called when its rows are kept, or not. The names of
// series that are new are read before, since writing may remove rows from the batch; and they count though no row is kept, since a second try will
// not find them new.
func (f *Front) noteSender(c *call, b *point.Batch) func() {
	if f.senders == nil {
		return func() {}
	}
	var fresh recent.Fresh
	for l := range b.NewSeries(c.known) {
		fresh.Add(l.Get(point.MetricName))
	}
	return func() { f.senders.Note(c.Table, f.senderOf(c), c.rows, &fresh, time.Now()) }
}

// senderOf describes the sender of a request, without its secret.
func (f *Front) senderOf(c *call) recent.Sender {
	s := recent.Sender{Protocol: protocolNames[c.protocol], Agent: c.Header("User-Agent"), Network: networkOf(c.from.remote())}
	if c.identity != nil && c.identity != f.everyone {
		s.Identity = c.identity.Name
	}
	return s
}

// Senders beside each other count as one: fleets of agents have addresses of one network.
const (
	networkBits  = 24
	networkBits6 = 64
)

// networkOf is the network around an address and port; "": the address is of another kind.
func networkOf(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return ""
	}
	addr, bits := at.Addr().Unmap().WithZone(""), networkBits
	if addr.IsLoopback() {
		return "loopback"
	}
	if addr.Is6() {
		bits = networkBits6
	}
	net, _ := addr.Prefix(bits) // so many bits it has
	return net.String()
}

package connect

import (
	"net"
	"os"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
)

// Peer holds how the processes of a cluster reach and authenticate each other. Fields with name and env are also flags of commands, which read
// no file.
type Peer struct {
	Listen     string `yaml:"listen" kong:"-" default:"127.0.0.1:8430" for:"storage" flag:"peer.listen" help:"Address for gateways and other servers."`
	Advertise  string `yaml:"advertise" kong:"-" auto:"that of peer.listen, with the host's name where it names none" for:"storage" flag:"peer.advertise" help:"Address that is given to them. The server calls itself there before it joins: where another one answers it does not join, and one that no process reaches gets no partitions."`
	CA         string `yaml:"ca" name:"peer.tls.ca" env:"SPILLWAY_PEER_CA" placeholder:"FILE" reload:"file" help:"File with the authority that signed the certificates of all processes."`
	Cert       string `yaml:"cert" name:"peer.tls.cert" env:"SPILLWAY_PEER_CERT" placeholder:"FILE" reload:"file" help:"File with this process's certificate."`
	Key        string `yaml:"key" name:"peer.tls.key" env:"SPILLWAY_PEER_KEY" placeholder:"FILE" reload:"file" help:"File with its key."`
	CRL        string `yaml:"crl" name:"peer.tls.crl" env:"SPILLWAY_PEER_CRL" placeholder:"FILE" reload:"file" help:"File with the certificates that the authority has revoked, signed by it."`
	ServerName string `yaml:"server_name" name:"peer.tls.server-name" env:"SPILLWAY_PEER_SERVER_NAME" placeholder:"NAME" help:"What certificates of servers must be for, when it is not the host of their address."`
	Insecure   bool   `yaml:"insecure" name:"dev.insecure-peers" env:"SPILLWAY_PEER_INSECURE" negatable:"" help:"Speak with peers in the clear, for development."`
}

// TLS is for a process with the identity own, which its certificate must state.
func (c Peer) TLS(own rpc.Identity) rpc.TLS {
	return rpc.TLS{CAFile: c.CA, CertFile: c.Cert, KeyFile: c.Key, CRLFile: c.CRL, ServerName: c.ServerName, Insecure: c.Insecure, Own: own}
}

// Advertised returns the address, HOST:PORT, at which others reach a server that listens at l. Errors are Invalid and name the setting.
func (c Peer) Advertised(l net.Addr) (string, error) {
	if c.Advertise != "" {
		if _, _, err := net.SplitHostPort(c.Advertise); err != nil {
			return "", fault.Wrap(err, fault.Invalid, "--peer.advertise")
		}
		return c.Advertise, nil
	}
	host, port, err := net.SplitHostPort(l.String())
	if err != nil {
		return "", fault.Wrap(err, fault.Invalid, "--peer.listen")
	}
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
		return l.String(), nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fault.Wrap(err, fault.Invalid, "this host's name; set --peer.advertise")
	}
	return net.JoinHostPort(name, port), nil
}

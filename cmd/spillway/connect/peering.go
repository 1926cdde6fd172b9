package connect

import (
	"net"
	"os"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
)

// Peer holds how the processes of a cluster reach and authenticate each other.
type Peer struct {
	Listen     string `yaml:"listen" default:"127.0.0.1:8430" for:"storage" flag:"peer.listen" help:"Address for gateways and other servers."`
	Advertise  string `yaml:"advertise" auto:"that of peer.listen, with the host's name where it names none" for:"storage" flag:"peer.advertise" help:"Address that is given to them."`
	CA         string `yaml:"ca" flag:"peer.tls.ca" help:"File with the authority that signed the certificates of all processes."`
	Cert       string `yaml:"cert" flag:"peer.tls.cert" help:"File with this process's certificate."`
	Key        string `yaml:"key" flag:"peer.tls.key" help:"File with its key."`
	CRL        string `yaml:"crl" flag:"peer.tls.crl" reload:"yes" help:"File with the certificates that the authority has revoked, signed by it. It is read again when it changes."`
	ServerName string `yaml:"server_name" flag:"peer.tls.server-name" help:"What certificates of servers must be for, when it is not the host of their address."`
	Insecure   bool   `yaml:"insecure" flag:"dev.insecure-peers" help:"Speak with peers in the clear, for development."`
}

// PeerFlags are the security of Peer for commands, which read no file.
type PeerFlags struct {
	CA         *string `name:"peer.tls.ca" help:"File with the authority that signed the certificates of all processes." placeholder:"FILE" env:"SPILLWAY_PEER_CA"`
	Cert       *string `name:"peer.tls.cert" help:"File with this process's certificate." placeholder:"FILE" env:"SPILLWAY_PEER_CERT"`
	Key        *string `name:"peer.tls.key" help:"File with its key." placeholder:"FILE" env:"SPILLWAY_PEER_KEY"`
	CRL        *string `name:"peer.tls.crl" help:"File with the certificates that the authority has revoked." placeholder:"FILE" env:"SPILLWAY_PEER_CRL"`
	ServerName *string `name:"peer.tls.server-name" help:"What certificates of servers must be for, when it is not the host of their address." placeholder:"NAME" env:"SPILLWAY_PEER_SERVER_NAME"`
	Insecure   *bool   `name:"dev.insecure-peers" negatable:"" help:"Speak with peers in the clear, for development." env:"SPILLWAY_PEER_INSECURE"`
}

// Over sets in c what flags were given.
func (f *PeerFlags) Over(c *Peer) {
	terminal.Over(&c.CA, f.CA)
	terminal.Over(&c.Cert, f.Cert)
	terminal.Over(&c.Key, f.Key)
	terminal.Over(&c.CRL, f.CRL)
	terminal.Over(&c.ServerName, f.ServerName)
	terminal.Over(&c.Insecure, f.Insecure)
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

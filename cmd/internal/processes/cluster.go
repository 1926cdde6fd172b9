package processes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Plan lists the processes to run.
type Plan struct {
	Bin     string // the built program
	EtcdBin string // the built cmd/etcd; "": the file etcd beside Bin
	Dir     string // where every process has a directory
	// Etcd is how many etcd members there are, Storage and Gateways how many of the others.
	Etcd, Storage, Gateways int
	// Port is the first of the ports, which follow each other; 0: any that are free.
	Port int
	// Memory is the bound for each storage server and gateway, as in --memory: they share a machine.
	Memory string
	// Place returns the address of a process (m1, s1, g1), and a command that runs it there: in a network namespace, say.
	// nil: all are on 127.0.0.1. Elsewhere Port must be set, and ports are not checked for being free.
	Place func(name string) (host string, in []string)
	// Certs makes certificates: every peer shows its own, and so do etcd's members and users; otherwise connections are
	// plain text.
	Certs bool
	// StorageArgs and GatewayArgs are further arguments, Env further variables of all processes.
	StorageArgs, GatewayArgs, Env []string
	// EnvOf returns further variables of one process (m1, s1, g1); nil: none has any.
	EnvOf func(name string) []string
	// Out returns the writer that gets the output of a process; nil: the output is dropped.
	Out func(name string) io.Writer
}

// Cluster is the processes of a Plan. Peers and Admin are the addresses of storage servers, HTTP and GatewayAdmin of gateways.
type Cluster struct {
	Etcd, Storage, Gateways          []*Process
	Coord                            string // the value of --coord
	EtcdClients                      []string
	Peers, Admin, HTTP, GatewayAdmin []string
}

// Layout chooses ports and arguments, and starts nothing. The error names the port that is in use, if Plan names ports.
func Layout(p Plan) (*Cluster, error) {
	etcdBin := cmp.Or(p.EtcdBin, filepath.Join(filepath.Dir(p.Bin), "etcd"))
	if _, err := os.Stat(etcdBin); p.Etcd > 0 && err != nil {
		return nil, fmt.Errorf("%w: build it with go build -o %s ./cmd/etcd", err, etcdBin)
	}
	ports, err := p.ports(2*(p.Etcd+p.Storage+p.Gateways) + p.Etcd)
	if err != nil {
		return nil, err
	}
	if err := p.certify(); err != nil {
		return nil, err
	}
	next := func(name string) string {
		host, _ := p.place(name)
		addr := net.JoinHostPort(host, ports[0])
		ports = ports[1:]
		return addr
	}
	c := &Cluster{}
	for i := range p.Gateways { // people type the first ports
		c.HTTP = append(c.HTTP, next(nameOf("g", i)))
	}
	for i := range p.Gateways {
		c.GatewayAdmin = append(c.GatewayAdmin, next(nameOf("g", i)))
	}
	var etcdPeers, etcdHealth, members []string
	for i := range p.Etcd {
		name := nameOf("m", i)
		c.EtcdClients, etcdPeers = append(c.EtcdClients, next(name)), append(etcdPeers, next(name))
		etcdHealth = append(etcdHealth, next(name))
		members = append(members, name+"="+etcdPeers[i])
	}
	c.Coord = "etcd://" + strings.Join(c.EtcdClients, ",")
	if p.Certs {
		c.Coord = "etcds://" + strings.Join(c.EtcdClients, ",")
	}
	for i := range p.Etcd {
		name := nameOf("m", i)
		args := []string{
			"--name=" + name, "--data-dir=" + filepath.Join(p.Dir, name), "--listen=" + c.EtcdClients[i], "--peer-listen=" + etcdPeers[i],
			"--health-listen=" + etcdHealth[i], "--initial-cluster=" + strings.Join(members, ","),
		}
		if p.Certs {
			args = append(args, "--tls.ca="+p.certFile("etcd-ca.crt"), "--tls.cert="+p.certFile("etcd-"+name+".crt"), "--tls.key="+p.certFile("etcd-"+name+".key"))
		}
		c.Etcd = append(c.Etcd, p.process(name, etcdBin, etcdHealth[i]+"/health", args...))
	}
	for i := range p.Storage {
		name := nameOf("s", i)
		c.Peers, c.Admin = append(c.Peers, next(name)), append(c.Admin, next(name))
		args := append([]string{"storage", "--id=" + name, fmt.Sprintf("--host=h%d", i+1), "--data-dir=" + filepath.Join(p.Dir, name),
			"--peer.listen=" + c.Peers[i], "--admin.listen=" + c.Admin[i], "--coord=" + c.Coord}, append(p.Security(name), p.CoordSecurity()...)...)
		c.Storage = append(c.Storage, p.process(name, p.Bin, c.Admin[i]+"/-/ready", append(args, p.StorageArgs...)...))
	}
	for i := range p.Gateways {
		name := nameOf("g", i)
		args := append([]string{"gateway", "--data-dir=" + filepath.Join(p.Dir, name), "--http.listen=" + c.HTTP[i],
			"--admin.listen=" + c.GatewayAdmin[i], "--coord=" + c.Coord}, append(p.Security(name), p.CoordSecurity()...)...)
		c.Gateways = append(c.Gateways, p.process(name, p.Bin, c.HTTP[i]+"/-/ready", append(args, p.GatewayArgs...)...))
	}
	return c, nil
}

func nameOf(kind string, i int) string { return kind + strconv.Itoa(i+1) }

func (p Plan) place(name string) (host string, in []string) {
	if p.Place == nil {
		return "127.0.0.1", nil
	}
	return p.Place(name)
}

func (p Plan) process(name, bin, ready string, args ...string) *Process {
	_, in := p.place(name)
	if p.Memory != "" && bin == p.Bin {
		args = append(args, "--memory="+p.Memory)
	}
	out := &Process{Name: name, Line: append([]string{bin}, args...), Ready: "http://" + ready, Env: p.Env, In: in}
	if p.EnvOf != nil {
		out.Env = append(slices.Clone(out.Env), p.EnvOf(name)...)
	}
	if p.Out != nil {
		out.Out = p.Out(name)
	}
	return out
}

// ports returns n free ports: from a port on, or any.
func (p Plan) ports(n int) (out []string, err error) {
	for i := range n {
		port := "0"
		if p.Port != 0 {
			port = strconv.Itoa(p.Port + i)
		}
		if p.Place != nil {
			out = append(out, port)
			continue
		}
		var l net.Listener
		if p.Port == 0 {
			l, err = listenAnywhere()
		} else if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", port)); err != nil {
			err = fmt.Errorf("port %s is taken (%w); %d ports from %d on are needed: choose others", port, err, n, p.Port)
		}
		if err != nil {
			return nil, err
		}
		defer l.Close() // all are held until all are found: none comes twice
		_, port, err = net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		out = append(out, port)
	}
	return out, nil
}

// FreeAddr returns an address on this machine that is free, for a process that is started later.
func FreeAddr() (string, error) {
	l, err := listenAnywhere()
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// AdminName is the name under which commands run, with its own certificate.
const AdminName = "ops"

// certify makes a certificate for each process, for one storage server more, and for commands, unless an earlier run has
// made them.
func (p Plan) certify() error {
	if !p.Certs {
		return nil
	}
	if found, err := filepath.Glob(p.certFile(AdminName + ".crt")); err == nil && len(found) > 0 {
		return nil
	}
	var storage, gateways, members []string
	for i := range p.Storage + 1 {
		name, host := nameOf("s", i), "127.0.0.1" // where one more is started by hand
		if i < p.Storage {
			host, _ = p.place(name)
		}
		storage = append(storage, name+"="+host)
	}
	for i := range p.Gateways {
		gateways = append(gateways, nameOf("g", i))
	}
	for i := range p.Etcd {
		name := nameOf("m", i)
		host, _ := p.place(name)
		members = append(members, name+"="+host)
	}
	args := []string{
		"certs", "--out-dir=" + p.certFile(""), "--storage=" + strings.Join(storage, ","), "--admins=" + AdminName,
		"--etcd=" + strings.Join(members, ","), "--etcd-users=" + etcdUser,
	}
	if len(gateways) > 0 {
		args = append(args, "--gateways="+strings.Join(gateways, ","))
	}
	cmd := exec.Command(p.Bin, args...)
	cmd.Env = environ()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("certificates: %w: %s", err, out)
	}
	return nil
}

func (p Plan) certFile(name string) string { return filepath.Join(p.Dir, "certs", name) }

// Security returns the arguments with which a process (s1, g1, AdminName) secures the connections to its peers.
func (p Plan) Security(name string) []string {
	if !p.Certs {
		return []string{"--dev.insecure-peers"}
	}
	return []string{"--peer.tls.ca=" + p.certFile("ca.crt"), "--peer.tls.cert=" + p.certFile(name+".crt"), "--peer.tls.key=" + p.certFile(name+".key")}
}

// etcdUser is the etcd user of all processes.
const etcdUser = "spillway"

// CoordSecurity returns the arguments with which a process secures its connection to etcd.
func (p Plan) CoordSecurity() []string {
	if !p.Certs {
		return nil
	}
	user := "etcd-user-" + etcdUser
	return []string{"--coord.ca=" + p.certFile("etcd-ca.crt"), "--coord.cert=" + p.certFile(user+".crt"), "--coord.key=" + p.certFile(user+".key")}
}

// All are the processes in the order in which they start.
func (c *Cluster) All() []*Process {
	var all []*Process
	for _, group := range c.groups() {
		all = append(all, group...)
	}
	return all
}

func (c *Cluster) groups() [][]*Process { return [][]*Process{c.Etcd, c.Storage, c.Gateways} }

// Start starts all, etcd first, and returns when all serve.
func (c *Cluster) Start(ctx context.Context) error {
	for _, group := range c.groups() {
		for _, p := range group {
			if err := p.Launch(); err != nil {
				return err
			}
		}
		for _, p := range group {
			if err := p.Wait(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// Stop ends all in the opposite order, each as an operator would, and kills those that do not end before ctx.
func (c *Cluster) Stop(ctx context.Context) error {
	var errs []error
	for _, group := range [][]*Process{c.Gateways, c.Storage, c.Etcd} {
		ended := make([]error, len(group))
		var wg sync.WaitGroup
		for i, p := range group {
			wg.Go(func() { ended[i] = p.Stop(ctx) })
		}
		wg.Wait()
		errs = append(errs, ended...)
	}
	return errors.Join(errs...)
}

// Kill ends all at once.
func (c *Cluster) Kill() {
	for _, p := range c.All() {
		p.Kill()
	}
}

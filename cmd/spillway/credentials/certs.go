package credentials

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
)

// Certs makes the certificates with which peers recognize each other: an authority, and a certificate for each
// process, which states its role and so the calls it is allowed. With the authority's key beside its certificate more can
// be added later.
type Certs struct {
	OutDir   string           `name:"out-dir" default:"certs" help:"Directory for the files; made if it is not there." type:"path"`
	Storage  []string         `name:"storage" help:"Storage servers, by the id they are started with, and the names or IP addresses they are called by, if other than that: s1=10.0.0.1,s2=b.example+10.0.0.2." placeholder:"ID=HOST,..."`
	Gateways []string         `name:"gateways" help:"Names of gateways: g1,g2." placeholder:"NAME,..."`
	Admins   []string         `name:"admins" help:"Names of people or hosts that run commands: ops." placeholder:"NAME,..."`
	Etcd     []string         `name:"etcd" help:"Members of etcd, by name, and the names or IP addresses they are called by: m1=10.0.0.7. They get an authority of their own, and so do the users of etcd." placeholder:"NAME=HOST,..."`
	Users    []string         `name:"etcd-users" help:"Users of etcd besides root: spillway." placeholder:"NAME,..."`
	Revoke   []string         `name:"revoke" help:"Take certificates back, by the names of their files: g1. The list of all that were is written to ca.crl." placeholder:"NAME,..."`
	Days     int              `name:"days" default:"730" help:"How long the certificates are good. The authority's is good for ten years."`
	now      func() time.Time // nil: the clock
}

const (
	caYears  = 10
	caName   = "ca"      // signs for the processes of Spillway
	etcdName = "etcd-ca" // signs for members of etcd and its users
	rootUser = "root"    // etcd's own name for its administrator
)

// Run writes the files and prints how to use them. Nothing is overwritten.
func (c *Certs) Run() error {
	if len(c.Revoke) > 0 {
		return c.revoke()
	}
	made, err := c.Make()
	if err != nil {
		return err
	}
	ps, _ := c.processes()
	if ps[0].ca == etcdName {
		fmt.Println(strings.Join(made, "\n"))
		return nil
	}
	ca, first := c.file(caName, "crt"), ps[0].file
	fmt.Printf("%s\n\nEach process, with the files of its own name:\n\n  --peer.tls.ca=%s --peer.tls.cert=%s --peer.tls.key=%s\n\nKeep %s away from the hosts: its holder can make certificates.\n",
		strings.Join(made, "\n"), ca, c.file(first, "crt"), c.file(first, "key"), c.file(caName, "key"))
	return nil
}

// certified is a process, or a user of etcd, that gets a certificate.
type certified struct {
	id     rpc.Identity // zero for etcd's
	ca     string       // the authority that signs it: caName, etcdName
	file   string       // the name of the files
	name   string       // the certificate's common name, which is the user to etcd
	hosts  []string     // the names it is called by
	server bool         // it accepts calls, too
}

// processes parses the flags.
func (c *Certs) processes() (out []certified, err error) {
	for _, s := range c.Storage {
		id, hosts, ok := strings.Cut(s, "=")
		if !ok {
			hosts = id
		}
		out = append(out, ofProcess(rpc.RoleStorage, id, strings.Split(hosts, "+")))
	}
	for _, g := range c.Gateways {
		out = append(out, ofProcess(rpc.RoleGateway, g, nil))
	}
	for _, a := range c.Admins {
		out = append(out, ofProcess(rpc.RoleAdmin, a, nil))
	}
	for _, m := range c.Etcd {
		name, hosts, ok := strings.Cut(m, "=")
		if !ok {
			hosts = name
		}
		out = append(out, certified{ca: etcdName, file: "etcd-" + fileOf(name), name: name, hosts: strings.Split(hosts, "+"), server: true})
	}
	users := c.Users
	if len(c.Etcd) > 0 && !c.has("etcd-user-"+rootUser) {
		users = append([]string{rootUser}, users...)
	}
	for _, u := range users {
		out = append(out, certified{ca: etcdName, file: "etcd-user-" + fileOf(u), name: u})
	}
	if len(out) == 0 {
		return nil, fault.Errorf(fault.Invalid, "--storage, --gateways, --admins, --etcd, --etcd-users: at least one certificate is needed")
	}
	return out, nil
}

func ofProcess(role rpc.Role, name string, hosts []string) certified {
	return certified{rpc.Identity{Role: role, Name: name}, caName, fileOf(name), name, hosts, role == rpc.RoleStorage}
}

// has reports whether a certificate was made before.
func (c *Certs) has(file string) bool {
	_, err := os.Lstat(c.file(file, "crt"))
	return err == nil
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Make writes the files, and returns their names. Nothing is overwritten: errors are Invalid where a file exists, and those of the disk.
func (c *Certs) Make() (made []string, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.OutDir, 0o700); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "--out-dir")
	}
	now := time.Now()
	if c.now != nil {
		now = c.now()
	}
	ps, err := c.processes()
	if err != nil {
		return made, err
	}
	authorities := map[string]authority{}
	for _, p := range ps {
		ca, ok := authorities[p.ca]
		if !ok {
			var files []string
			ca, files, err = c.authority(p.ca, now)
			made = append(made, files...)
			if err != nil {
				return made, err
			}
			authorities[p.ca] = ca
		}
		files, err := c.newProcess(ca, p, now)
		made = append(made, files...)
		if err != nil {
			return made, err
		}
	}
	return made, nil
}

// authority reads an authority, or makes it. It must outlast the certificates that it signs.
func (c *Certs) authority(name string, now time.Time) (ca authority, made []string, err error) {
	ca, err = c.readAuthority(name)
	if errors.Is(err, fs.ErrNotExist) {
		ca, made, err = c.newAuthority(name, now)
	}
	if err != nil {
		return ca, made, err
	}
	if end := now.AddDate(0, 0, c.Days); end.After(ca.cert.NotAfter) {
		return ca, made, fault.Errorf(fault.Invalid, "the authority %s is good until %s only: fewer --days, or a new directory", c.file(name, "crt"), ca.cert.NotAfter.Format(time.DateOnly))
	}
	return ca, made, nil
}

// check finds mistakes, and files in the way, before anything is written.
func (c *Certs) check() error {
	ps, err := c.processes()
	if err != nil {
		return err
	}
	if c.Days < 1 {
		return fault.Errorf(fault.Invalid, "--days=%d: at least one is needed", c.Days)
	}
	names := map[string]bool{caName: true, etcdName: true}
	for _, p := range ps {
		for _, host := range append([]string{p.name}, p.hosts...) {
			if !nameOrAddress(host) {
				return fault.Errorf(fault.Invalid, "%s: %q is neither a name nor an IP address", p.file, host)
			}
		}
		if names[p.file] {
			return fault.Errorf(fault.Invalid, "the files of %q have a name that is taken; rename it", p.name)
		}
		names[p.file] = true
		for _, ext := range []string{"crt", "key"} {
			if _, err := os.Lstat(c.file(p.file, ext)); err == nil {
				return fault.Errorf(fault.Invalid, "%s exists and is not overwritten; nothing was made. To renew a certificate, move it and its key away, and run this again: %s signs the new one", c.file(p.file, ext), c.file(p.ca, "key"))
			}
		}
		_, noCert := os.Lstat(c.file(p.ca, "crt"))
		_, noKey := os.Lstat(c.file(p.ca, "key"))
		if (noCert == nil) != (noKey == nil) {
			return fault.Errorf(fault.Invalid, "of the authority's two files %s.crt and .key in %s one is missing; nothing was made", p.ca, c.OutDir)
		}
	}
	return nil
}

func nameOrAddress(host string) bool {
	return net.ParseIP(host) != nil || host != "" && !strings.ContainsAny(host, "/\\: \t*+=") && !strings.HasPrefix(host, ".") && !strings.HasPrefix(host, "-")
}

// fileOf is a process's name as the name of its files; an IPv6 address has dashes for colons.
func fileOf(name string) string { return strings.ReplaceAll(name, ":", "-") }

func (c *Certs) file(name, ext string) string { return filepath.Join(c.OutDir, name+"."+ext) }

func (c *Certs) readAuthority(name string) (a authority, err error) {
	cert, err := readPEM(c.file(name, "crt"), "CERTIFICATE")
	if err != nil {
		return a, err
	}
	key, err := readPEM(c.file(name, "key"), "EC PRIVATE KEY")
	if err != nil {
		return a, err
	}
	if a.cert, err = x509.ParseCertificate(cert); err == nil {
		a.key, err = x509.ParseECPrivateKey(key)
	}
	if err == nil && !a.key.PublicKey.Equal(a.cert.PublicKey) {
		err = fault.Errorf(fault.Invalid, "the key is not that of the certificate")
	}
	return a, fault.Wrap(err, fault.Invalid, "the authority in %s", c.OutDir)
}

func readPEM(name, kind string) ([]byte, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "the authority")
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != kind {
		return nil, fault.Errorf(fault.Invalid, "%s holds no %s in PEM", name, strings.ToLower(kind))
	}
	return block.Bytes, nil
}

func (c *Certs) newAuthority(name string, now time.Time) (a authority, files []string, err error) {
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return a, nil, err
	}
	t, err := template(map[string]string{caName: "Spillway peers ", etcdName: "Spillway etcd "}[name]+now.Format(time.DateOnly), now, now.AddDate(caYears, 0, 0))
	if err != nil {
		return a, nil, err
	}
	t.IsCA, t.MaxPathLenZero, t.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, a.key.Public(), a.key)
	if err != nil {
		return a, nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return a, nil, err
	}
	files, err = c.write(name, der, a.key)
	return a, files, err
}

// newProcess makes a client certificate; for a process that accepts calls, a server certificate too.
func (c *Certs) newProcess(ca authority, p certified, now time.Time) ([]string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t, err := template(p.name, now, now.AddDate(0, 0, c.Days))
	if err != nil {
		return nil, err
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if p.ca == caName {
		t.URIs = []*url.URL{p.id.URI()}
	}
	if p.server {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, host := range p.hosts {
		if ip := net.ParseIP(host); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, err
	}
	return c.write(p.file, der, key)
}

// template is valid from an hour ago: clocks of hosts differ.
func template(name string, now, end time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: end,
		BasicConstraintsValid: true,
	}, nil
}

// write writes the key first: a certificate without its key looks complete and is useless.
func (c *Certs) write(name string, der []byte, key *ecdsa.PrivateKey) (files []string, err error) {
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		ext, kind string
		bytes     []byte
	}{{"key", "EC PRIVATE KEY", secret}, {"crt", "CERTIFICATE", der}} {
		to, err := os.OpenFile(c.file(name, f.ext), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return files, fault.Wrap(err, fault.Invalid, "write a certificate")
		}
		err = errors.Join(pem.Encode(to, &pem.Block{Type: f.kind, Bytes: f.bytes}), to.Close())
		if err != nil {
			return files, fault.Wrap(err, fault.Unavailable, "write a certificate")
		}
		files = append(files, c.file(name, f.ext))
	}
	return files, nil
}

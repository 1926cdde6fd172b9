package main

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
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// certsCmd makes what peers know each other by: an authority, and a certificate for each host, which is good for serving
// and for calling. With the authority's key beside its certificate more hosts are added later.
type certsCmd struct {
	OutDir string           `name:"out-dir" default:"certs" help:"Directory for the files; made if it is not there." type:"path"`
	Hosts  []string         `name:"hosts" required:"" help:"Names or IP addresses by which processes are called, or that call: a,b,127.0.0.1. Each gets a certificate."`
	Days   int              `name:"days" default:"730" help:"How long the hosts' certificates are good. The authority's is good for ten years."`
	now    func() time.Time // nil: the clock
}

const (
	caYears = 10
	caName  = "ca"
)

// Run writes the files and says how to use them. Nothing is overwritten.
func (c *certsCmd) Run() error {
	made, err := c.make()
	if err != nil {
		return err
	}
	ca, first := c.file(caName, "crt"), hostFile(c.Hosts[0])
	fmt.Printf("%s\n\nOn each host, with the files of its own name:\n\n  --peer.tls.ca=%s --peer.tls.cert=%s --peer.tls.key=%s\n\nKeep %s away from the hosts: whoever has it can make certificates.\n",
		strings.Join(made, "\n"), ca, c.file(first, "crt"), c.file(first, "key"), c.file(caName, "key"))
	return nil
}

// authority is who signs.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func (c *certsCmd) make() (made []string, err error) {
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
	ca, err := c.readAuthority()
	if errors.Is(err, fs.ErrNotExist) {
		var files []string
		ca, files, err = c.newAuthority(now)
		made = append(made, files...)
	}
	if err != nil {
		return made, err
	}
	if end := now.AddDate(0, 0, c.Days); end.After(ca.cert.NotAfter) {
		return made, fault.Errorf(fault.Invalid, "the authority in %s is good until %s only: fewer --days, or a new directory", c.OutDir, ca.cert.NotAfter.Format(time.DateOnly))
	}
	for _, host := range c.Hosts {
		files, err := c.newHost(ca, host, now)
		made = append(made, files...)
		if err != nil {
			return made, err
		}
	}
	return made, nil
}

// check finds mistakes, and files in the way, before anything is written.
func (c *certsCmd) check() error {
	if len(c.Hosts) == 0 {
		return fault.Errorf(fault.Invalid, "--hosts: at least one is needed")
	}
	if c.Days < 1 {
		return fault.Errorf(fault.Invalid, "--days=%d: at least one is needed", c.Days)
	}
	names := map[string]bool{caName: true}
	for _, host := range c.Hosts {
		name := hostFile(host)
		if net.ParseIP(host) == nil && (host == "" || strings.ContainsAny(host, "/\\: \t*") || strings.HasPrefix(host, ".") || strings.HasPrefix(host, "-")) {
			return fault.Errorf(fault.Invalid, "--hosts: %q is neither a name nor an IP address", host)
		}
		if names[name] {
			return fault.Errorf(fault.Invalid, "--hosts: the files of %q have a name that is taken; rename it", host)
		}
		names[name] = true
		for _, ext := range []string{"crt", "key"} {
			if _, err := os.Lstat(c.file(name, ext)); err == nil {
				return fault.Errorf(fault.Invalid, "%s exists and is not overwritten; nothing was made", c.file(name, ext))
			}
		}
	}
	_, noCert := os.Lstat(c.file(caName, "crt"))
	_, noKey := os.Lstat(c.file(caName, "key"))
	if (noCert == nil) != (noKey == nil) {
		return fault.Errorf(fault.Invalid, "of the authority's two files in %s one is missing; nothing was made", c.OutDir)
	}
	return nil
}

// hostFile is a host as the name of its files; an IPv6 address has dashes for colons.
func hostFile(host string) string { return strings.ReplaceAll(host, ":", "-") }

func (c *certsCmd) file(name, ext string) string { return filepath.Join(c.OutDir, name+"."+ext) }

func (c *certsCmd) readAuthority() (a authority, err error) {
	cert, err := readPEM(c.file(caName, "crt"), "CERTIFICATE")
	if err != nil {
		return a, err
	}
	key, err := readPEM(c.file(caName, "key"), "EC PRIVATE KEY")
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

func (c *certsCmd) newAuthority(now time.Time) (a authority, files []string, err error) {
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return a, nil, err
	}
	t, err := template("Spillway peers "+now.Format(time.DateOnly), now, now.AddDate(caYears, 0, 0))
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
	files, err = c.write(caName, der, a.key)
	return a, files, err
}

func (c *certsCmd) newHost(ca authority, host string, now time.Time) ([]string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t, err := template(host, now, now.AddDate(0, 0, c.Days))
	if err != nil {
		return nil, err
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if ip := net.ParseIP(host); ip != nil {
		t.IPAddresses = []net.IP{ip}
	} else {
		t.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, err
	}
	return c.write(hostFile(host), der, key)
}

// template is good from an hour ago: clocks of hosts differ.
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

// write writes the key first: a certificate whose key is lost looks whole and is not.
func (c *certsCmd) write(name string, der []byte, key *ecdsa.PrivateKey) (files []string, err error) {
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

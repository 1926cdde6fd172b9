package credentials

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

const (
	crlExt  = "crl"
	crlKind = "X509 CRL"
)

// revoke adds certificates to the authority's list of revoked ones. The list replaces the one before in one step: a
// process that reads it meanwhile finds either.
func (c *Certs) revoke() error {
	now := time.Now()
	if c.now != nil {
		now = c.now()
	}
	ca, err := c.readAuthority(caName)
	if err != nil {
		return err
	}
	list, err := c.readRevoked(ca)
	if err != nil {
		return err
	}
	for _, name := range c.Revoke {
		der, err := readPEM(c.file(name, "crt"), "CERTIFICATE")
		if err != nil {
			return err
		}
		cert, err := x509.ParseCertificate(der)
		if err == nil {
			err = cert.CheckSignatureFrom(ca.cert)
		}
		if err != nil {
			return fault.Wrap(err, fault.Invalid, "%s", c.file(name, "crt"))
		}
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: cert.SerialNumber, RevocationTime: now})
	}
	list.Number = new(big.Int).Add(list.Number, big.NewInt(1))
	list.ThisUpdate, list.NextUpdate = now, ca.cert.NotAfter
	der, err := x509.CreateRevocationList(rand.Reader, list, ca.cert, ca.key)
	if err != nil {
		return fault.Wrap(err, fault.Invalid, "list of revoked certificates")
	}
	to := c.file(caName, crlExt)
	if err := replaceFile(to, pem.EncodeToMemory(&pem.Block{Type: crlKind, Bytes: der})); err != nil {
		return err
	}
	fmt.Printf("%d certificates are revoked by %s. Copy it to every host and give all processes --peer.tls.crl=%s: those that have it close connections of these certificates within seconds.\n",
		len(list.RevokedCertificateEntries), to, to)
	return nil
}

// readRevoked returns the list so far, or an empty one.
func (c *Certs) readRevoked(ca authority) (*x509.RevocationList, error) {
	der, err := readPEM(c.file(caName, crlExt), crlKind)
	if errors.Is(err, fs.ErrNotExist) {
		return &x509.RevocationList{Number: big.NewInt(0)}, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := x509.ParseRevocationList(der)
	if err == nil {
		err = list.CheckSignatureFrom(ca.cert)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "%s", c.file(caName, crlExt))
	}
	// A parsed list has its entries in a raw form too, which would override the entries appended here.
	return &x509.RevocationList{Number: list.Number, RevokedCertificateEntries: list.RevokedCertificateEntries}, nil
}

// replaceFile writes a file beside the old one and renames it.
func replaceFile(name string, text []byte) (err error) {
	beside, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "write %s", name)
	}
	defer func() { err = errors.Join(err, ignoreGone(os.Remove(beside.Name()))) }()
	_, err = bytes.NewReader(text).WriteTo(beside)
	err = errors.Join(err, beside.Chmod(0o644), beside.Sync(), beside.Close())
	if err == nil {
		err = os.Rename(beside.Name(), name)
	}
	return fault.Wrap(err, fault.Unavailable, "write %s", name)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

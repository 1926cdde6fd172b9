package access

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/time/rate"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/setting"
)

const (
	fileBytesMax = 4 << 20
	usersMax     = 10_000
)

// Header is one that every answer carries.
type Header struct{ Name, Value string }

// webState is the content of a web-config file, ready for use. The zero value stands for no file.
type webState struct {
	tls     *tls.Config // nil: no TLS
	expiry  time.Time   // of the certificate
	users   map[string]user
	decoy   string // the hash of the highest cost
	headers []Header
	limit   limit
	limiter *rate.Limiter // nil: none
	digest  digest        // of the file and of all that it names
}

// user is one that the file lets do everything.
type user struct {
	hash string // bcrypt
	id   *Identity
}

// limit is rate_limit of the file.
type limit struct {
	interval time.Duration
	burst    int
}

// loadWeb reads a web-config file and the certificates that it names. The error is Invalid and names the fault and its
// place.
func loadWeb(name string, files *files) (w webState, err error) {
	text, err := files.read(name)
	if err != nil {
		return w, fault.Wrap(err, fault.Invalid, "web.config.file")
	}
	c := newWebFile()
	if err := setting.DecodeYAML(text, &c); err != nil {
		return w, fault.Wrap(err, fault.Invalid, "web.config.file %s", name)
	}
	c.TLS.within(filepath.Dir(name))
	if err := w.take(&c, files); err != nil {
		return w, fault.Wrap(err, fault.Invalid, "web.config.file %s", name)
	}
	w.digest = digest(files.sums.Sum(nil))
	return w, nil
}

func (w *webState) take(c *webFile, files *files) error {
	if err := c.HTTP.validate(); err != nil {
		return err
	}
	if c.TLS.enabled() {
		if err := w.takeTLS(c, files); err != nil {
			return err
		}
	}
	if len(c.Users) > usersMax {
		return fmt.Errorf("basic_auth_users: %d users, at most %d are taken", len(c.Users), usersMax)
	}
	w.users = map[string]user{}
	highest := 0
	for name, hash := range c.Users {
		cost, err := bcrypt.Cost([]byte(hash))
		if err != nil {
			return fmt.Errorf("basic_auth_users: the password of %q is no bcrypt hash: %w", name, err)
		}
		if cost > costMax {
			return fmt.Errorf("basic_auth_users: the bcrypt cost of %q is %d, at most %d is taken", name, cost, costMax)
		}
		if cost > highest {
			highest, w.decoy = cost, hash
		}
		w.users[name] = user{hash, full(name)}
	}
	for _, name := range slices.Sorted(maps.Keys(c.HTTP.Headers)) {
		if v := c.HTTP.Headers[name]; v != "" {
			w.headers = append(w.headers, Header{name, v})
		}
	}
	w.limit = limit{c.Limit.Interval, c.Limit.Burst}
	if w.limit.interval < 0 || w.limit.interval > 0 && w.limit.burst < 1 {
		return errors.New("rate_limit: interval must not be negative, and burst at least 1")
	}
	if w.limit.interval > 0 {
		w.limiter = rate.NewLimiter(rate.Every(w.limit.interval), w.limit.burst)
	}
	return nil
}

// takeTLS makes the configuration of handshakes. The certificate is read once here, not at every handshake, so that a
// file that is just being replaced fails a reload and no handshake.
func (w *webState) takeTLS(c *webFile, files *files) error {
	t, err := c.TLS.config(files)
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(t.Certificates[0].Certificate[0])
	if err != nil {
		return err
	}
	w.expiry = leaf.NotAfter
	if t.ClientAuth != tls.NoClientCert {
		// A resumed session would not be held against new authorities and names.
		t.SessionTicketsDisabled = true
	}
	t.NextProtos = []string{"http/1.1"}
	if c.HTTP.HTTP2 {
		t.NextProtos = []string{"h2", "http/1.1"}
	}
	w.tls = t
	return nil
}

// files reads files and hashes the bytes read. A state and its digest are of the same bytes: a file that is replaced between two reads, one for each, would pass for the
// one in force, and a renewed certificate would not be used until the next change.
type files struct {
	open func(name string) ([]byte, error)
	sums hash.Hash // of all that was read, in order
}

func newFiles() *files { return &files{readFile, sha256.New()} }

func (f *files) read(name string) ([]byte, error) {
	text, err := f.open(name)
	sum := sha256.Sum256(text)
	f.sums.Write(sum[:])
	return text, err
}

// readFile reads a file of settings, which is small.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, fileBytesMax+1))
	if err == nil && len(text) > fileBytesMax {
		err = fmt.Errorf("%s has more than %d bytes", name, fileBytesMax)
	}
	return text, err
}

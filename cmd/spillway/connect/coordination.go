package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/etcd"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/handshake"
)

// Coord is the way to the coordination store of a cluster. Fields with name and env are also flags of commands, which read no file.
type Coord struct {
	URL          string `yaml:"url" name:"coord" env:"SPILLWAY_COORD_URL" placeholder:"URL" help:"Coordination store: etcd://host:port[,host:port][/prefix], etcds:// with TLS. The prefix, spillway unless it is given, keeps several clusters apart in one etcd; none may lie below that of another."`
	Username     string `yaml:"username" name:"coord.username" env:"SPILLWAY_COORD_USERNAME" placeholder:"NAME" help:"User name for the coordination store."`
	PasswordFile string `yaml:"password_file" name:"coord.password-file" env:"SPILLWAY_COORD_PASSWORD_FILE" placeholder:"FILE" help:"File with the password."`
	CA           string `yaml:"ca" name:"coord.ca" env:"SPILLWAY_COORD_CA" placeholder:"FILE" help:"File with the authority that signed the store's certificate. Without it: those of the system."`
	Cert         string `yaml:"cert" name:"coord.cert" env:"SPILLWAY_COORD_CERT" placeholder:"FILE" help:"File with this client's certificate, if the store wants one."`
	Key          string `yaml:"key" name:"coord.key" env:"SPILLWAY_COORD_KEY" placeholder:"FILE" help:"File with its key."`
}

// Check reports mistakes, without a connection. Errors are Invalid and describe valid settings.
func (c Coord) Check() error {
	_, _, err := c.etcd()
	return err
}

// etcd parses the settings. Errors are Invalid and describe a valid one.
func (c Coord) etcd() (etcd.Settings, *tls.Config, error) {
	none := func(format string, args ...any) (etcd.Settings, *tls.Config, error) {
		return etcd.Settings{}, nil, fault.Errorf(fault.Invalid, format, args...)
	}
	const shape = "etcd://host:2379[,host:2379][/prefix], or etcds:// with TLS"
	if c.URL == "" {
		return none("--coord is missing: %s", shape)
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "etcd" && u.Scheme != "etcds" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return none("--coord %q is not of the form %s", c.URL, shape)
	}
	s := etcd.Settings{Prefix: strings.Trim(u.Path, "/"), Username: c.Username}
	scheme := map[string]string{"etcd": "http://", "etcds": "https://"}[u.Scheme]
	for _, e := range strings.Split(u.Host, ",") {
		if _, _, err := net.SplitHostPort(e); err != nil {
			e = net.JoinHostPort(strings.Trim(e, "[]"), "2379")
		}
		s.Endpoints = append(s.Endpoints, scheme+e)
	}
	if c.PasswordFile != "" {
		text, err := os.ReadFile(c.PasswordFile)
		if err != nil {
			return none("password of the coordination store: %v", err)
		}
		s.Password = strings.TrimRight(string(text), "\r\n")
	}
	if u.Scheme == "etcd" {
		if c.CA != "" || c.Cert != "" || c.Key != "" {
			return none("--coord %q is without TLS, and certificates are set: use etcds://", c.URL)
		}
		return s, nil, nil
	}
	t, err := c.tls()
	return s, t, err
}

func (c Coord) tls() (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		text, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "authority of the coordination store")
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(text) {
			return nil, fault.Errorf(fault.Invalid, "%s holds no certificate in PEM", c.CA)
		}
	}
	if (c.Cert == "") != (c.Key == "") {
		return nil, fault.Errorf(fault.Invalid, "--coord.cert and --coord.key go together")
	}
	if c.Cert != "" {
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { // read again: certificates are renewed
			pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
			return &pair, err
		}
	}
	return t, nil
}

// Open connects to the store; parts of the process that watch the same rows share one watch. Errors are Invalid or
// Unavailable.
func (c Coord) Open(ctx context.Context) (coord.Store, error) { return c.Connect(ctx, false) }

// Connect connects to the store; lazy: also while it does not answer.
func (c Coord) Connect(ctx context.Context, lazy bool) (coord.Store, error) {
	s, t, err := c.etcd()
	if err != nil {
		return nil, err
	}
	s.Lazy = lazy
	store, err := etcd.Open(ctx, etcd.Deps{TLS: t}, s)
	if err != nil {
		if why := c.Refusal(ctx); why != nil {
			return nil, why
		}
		return nil, fault.Annotate(err, "coordination store %s", c.URL)
	}
	return coord.Share(store), nil
}

// refusalMax bounds how long one member of etcd is waited for.
const refusalMax = 2 * time.Second

// Refusal returns the reason if a member of etcd and this process do not accept each other's certificates, and nil if they do, without TLS, and if no
// member answers. The client of etcd reports a time-out for it. The error is Unavailable: a renewed file is read again.
func (c Coord) Refusal(ctx context.Context) error {
	s, t, err := c.etcd()
	if err != nil || t == nil {
		return nil
	}
	for _, e := range s.Endpoints {
		ctx, cancel := context.WithTimeout(ctx, refusalMax)
		err := handshake.Try(ctx, strings.TrimPrefix(e, "https://"), t)
		cancel()
		if fault.Is(err, fault.Denied) {
			return fault.Wrap(err, fault.Unavailable, "coordination store: --coord.ca, --coord.cert or --coord.key is not right")
		}
	}
	return nil
}

package access

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// webFile is the web-config file of Prometheus and its exporters, key by key:
// https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md.
type webFile struct {
	TLS   webTLS            `yaml:"tls_server_config"`
	HTTP  webHTTP           `yaml:"http_server_config"`
	Limit webLimit          `yaml:"rate_limit"`
	Users map[string]string `yaml:"basic_auth_users"` // bcrypt
}

type webTLS struct {
	Cert         string                 `yaml:"cert"` // PEM, in place of CertFile
	Key          string                 `yaml:"key"`
	ClientCA     string                 `yaml:"client_ca"`
	CertFile     string                 `yaml:"cert_file"`
	KeyFile      string                 `yaml:"key_file"`
	ClientCAFile string                 `yaml:"client_ca_file"`
	ClientAuth   string                 `yaml:"client_auth_type"`
	AllowedSANs  []string               `yaml:"client_allowed_sans"`
	Ciphers      []named[cipherNames]   `yaml:"cipher_suites"`
	Curves       []named[curveNames]    `yaml:"curve_preferences"`
	MinVersion   named[tlsVersionNames] `yaml:"min_version"`
	MaxVersion   named[tlsVersionNames] `yaml:"max_version"`
	PreferServer bool                   `yaml:"prefer_server_cipher_suites"` // accepted and ignored, as by Go since 1.17
}

type webHTTP struct {
	HTTP2   bool              `yaml:"http2"`
	Headers map[string]string `yaml:"headers"`
}

type webLimit struct {
	Burst    int           `yaml:"burst"`
	Interval time.Duration `yaml:"interval"`
}

// newWebFile returns the content of an empty file.
func newWebFile() webFile {
	return webFile{
		TLS:  webTLS{MinVersion: named[tlsVersionNames]{id: tls.VersionTLS12}, MaxVersion: named[tlsVersionNames]{id: tls.VersionTLS13}},
		HTTP: webHTTP{HTTP2: true},
	}
}

// headersAllowed are the headers that the file may set. An empty list allows every value.
var headersAllowed = map[string][]string{
	"Strict-Transport-Security": nil,
	"X-Content-Type-Options":    {"nosniff"},
	"X-Frame-Options":           {"deny", "sameorigin"},
	"X-XSS-Protection":          nil,
	"Content-Security-Policy":   nil,
}

// validate reports the first header, in alphabetical order, that the file may not set.
func (h *webHTTP) validate() error {
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		values, ok := headersAllowed[name]
		if !ok {
			return fmt.Errorf("http_server_config.headers: %q cannot be set; %s can", name, strings.Join(slices.Sorted(maps.Keys(headersAllowed)), ", "))
		}
		if len(values) > 0 && !slices.Contains(values, h.Headers[name]) {
			return fmt.Errorf("http_server_config.headers: %s is %q, and must be one of %q", name, h.Headers[name], values)
		}
	}
	return nil
}

// enabled reports whether any key asks for TLS; config says whether they make sense.
func (t *webTLS) enabled() bool {
	return t.CertFile != "" || t.Cert != "" || t.KeyFile != "" || t.Key != "" || t.ClientCAFile != "" || t.ClientCA != "" || t.ClientAuth != ""
}

// within makes relative names relative to a directory.
func (t *webTLS) within(dir string) {
	for _, name := range []*string{&t.CertFile, &t.KeyFile, &t.ClientCAFile} {
		if *name != "" && !filepath.IsAbs(*name) {
			*name = filepath.Join(dir, *name)
		}
	}
}

var clientAuthTypes = map[string]tls.ClientAuthType{
	"":                           tls.NoClientCert,
	"NoClientCert":               tls.NoClientCert,
	"RequestClientCert":          tls.RequestClientCert,
	"RequireAnyClientCert":       tls.RequireAnyClientCert,
	"RequireClientCert":          tls.RequireAnyClientCert, // its name of old
	"VerifyClientCertIfGiven":    tls.VerifyClientCertIfGiven,
	"RequireAndVerifyClientCert": tls.RequireAndVerifyClientCert,
}

// config reads the files and makes the configuration of handshakes.
func (t *webTLS) config(files *files) (*tls.Config, error) {
	cert, err := t.pair(files)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: t.MinVersion.id, MaxVersion: t.MaxVersion.id, Certificates: []tls.Certificate{cert}}
	for _, suite := range t.Ciphers {
		c.CipherSuites = append(c.CipherSuites, suite.id)
	}
	for _, curve := range t.Curves {
		c.CurvePreferences = append(c.CurvePreferences, tls.CurveID(curve.id))
	}
	auth, ok := clientAuthTypes[t.ClientAuth]
	if !ok {
		return nil, fmt.Errorf("client_auth_type %q is none of %s", t.ClientAuth, strings.Join(slices.Sorted(maps.Keys(clientAuthTypes))[1:], ", "))
	}
	c.ClientAuth = auth
	if c.ClientCAs, err = t.clientCAs(files); err != nil {
		return nil, err
	}
	if c.ClientCAs != nil && auth == tls.NoClientCert {
		return nil, errors.New("client_ca is set, but client_auth_type asks for no certificate")
	}
	if t.AllowedSANs != nil {
		c.VerifyPeerCertificate = t.verify
	}
	return c, nil
}

// pair reads certificate and key.
func (t *webTLS) pair(files *files) (tls.Certificate, error) {
	cert, err := files.inlineOr("cert", t.Cert, t.CertFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := files.inlineOr("key", t.Key, t.KeyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return pair, fmt.Errorf("cert and key are no pair (X509KeyPair): %w", err)
	}
	return pair, nil
}

func (f *files) inlineOr(key, text, file string) ([]byte, error) {
	switch {
	case file != "":
		return f.read(file)
	case text != "":
		return []byte(text), nil
	}
	return nil, fmt.Errorf("missing one of %s or %s_file", key, key)
}

// clientCAs returns nil if the file names none.
func (t *webTLS) clientCAs(files *files) (*x509.CertPool, error) {
	if t.ClientCA == "" && t.ClientCAFile == "" {
		return nil, nil
	}
	text, err := files.inlineOr("client_ca", t.ClientCA, t.ClientCAFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("client_ca holds no certificate in PEM form")
	}
	return pool, nil
}

// verify refuses a client whose certificate has none of the allowed names.
func (t *webTLS) verify(raw [][]byte, _ [][]*x509.Certificate) error {
	if len(raw) == 0 {
		return errors.New("no certificate, though client_allowed_sans names some")
	}
	cert, err := x509.ParseCertificate(raw[0])
	if err != nil {
		return fmt.Errorf("parse the client's certificate: %w", err)
	}
	names := slices.Concat(cert.DNSNames, cert.EmailAddresses)
	for _, ip := range cert.IPAddresses {
		names = append(names, ip.String())
	}
	for _, uri := range cert.URIs {
		names = append(names, uri.String())
	}
	for _, name := range names {
		if slices.Contains(t.AllowedSANs, name) {
			return nil
		}
	}
	return fmt.Errorf("the client's certificate is for %q, and client_allowed_sans has none of them", names)
}

// named is a number of TLS that files give by its name.
type named[N names] struct{ id uint16 }

type names interface {
	id(name string) (uint16, error)
}

// UnmarshalYAML resolves the name.
func (n *named[N]) UnmarshalYAML(node *yaml.Node) (err error) {
	var name string
	if err := node.Decode(&name); err != nil {
		return err
	}
	var in N
	if n.id, err = in.id(name); err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %v", node.Line, err)}}
	}
	return nil
}

type (
	cipherNames     struct{}
	curveNames      struct{}
	tlsVersionNames struct{}
)

func (cipherNames) id(name string) (uint16, error) {
	for _, suite := range tls.CipherSuites() {
		if suite.Name == name {
			return suite.ID, nil
		}
	}
	return 0, fmt.Errorf("unknown cipher %q", name)
}

func (curveNames) id(name string) (uint16, error) {
	switch name {
	case "CurveP256":
		return uint16(tls.CurveP256), nil
	case "CurveP384":
		return uint16(tls.CurveP384), nil
	case "CurveP521":
		return uint16(tls.CurveP521), nil
	case "X25519":
		return uint16(tls.X25519), nil
	}
	return 0, fmt.Errorf("unknown curve %q", name)
}

func (tlsVersionNames) id(name string) (uint16, error) {
	switch name {
	case "TLS10":
		return tls.VersionTLS10, nil
	case "TLS11":
		return tls.VersionTLS11, nil
	case "TLS12":
		return tls.VersionTLS12, nil
	case "TLS13":
		return tls.VersionTLS13, nil
	}
	return 0, fmt.Errorf("unknown TLS version %q", name)
}

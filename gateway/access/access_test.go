package access_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"golang.org/x/crypto/bcrypt"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/protocols/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a Guard with its files and its log.
type world struct {
	t    testing.TB
	dir  string
	set  access.Settings
	log  bytes.Buffer
	reg  *prometheus.Registry
	g    *access.Guard
	made int
}

// newWorld writes the files that are not empty.
func newWorld(t testing.TB, web, tokens string) *world {
	w := &world{t: t, dir: t.TempDir(), reg: prometheus.NewRegistry()}
	if web != "" {
		w.set.WebFile = w.write("web.yml", web)
	}
	if tokens != "" {
		w.set.TokensFile = w.write("tokens.yml", tokens)
	}
	return w
}

func (w *world) write(name, text string) string {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

func (w *world) open() error {
	var err error
	w.g, err = access.Open(access.Deps{Log: slog.New(slog.NewTextHandler(&w.log, nil)), Registerer: w.reg}, w.set)
	return err
}

func (w *world) mustOpen() *world {
	w.t.Helper()
	if err := w.open(); err != nil {
		w.t.Fatal(err)
	}
	return w
}

// metric gives the value of a counter or gauge, summed over labels that are not named.
func (w *world) metric(name, label string) float64 {
	w.t.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == label {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// as shows one header.
func as(header string) access.Credentials {
	return access.Credentials{Authorization: []string{header}, Remote: func() string { return "192.0.2.1:1000" }}
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// wants asks for the identity's name, or for a refusal's reason after a "!".
func (w *world) wants(want string, c access.Credentials) *access.Identity {
	w.t.Helper()
	id, err := w.g.Identify(c)
	got := ""
	var r *access.Refusal
	switch {
	case err == nil:
		got = id.Name
	case errors.As(err, &r):
		got = fmt.Sprintf("!%d %s", r.Status, r.Reason)
	}
	if got != want {
		w.t.Errorf("%+v: %q (%v), want %q", c.Authorization, got, err, want)
	}
	return id
}

func entry(t testing.TB, token, name, expires string, scopes ...access.Scope) string {
	t.Helper()
	tok := access.Token{Name: name, Scopes: scopes}
	if expires != "" {
		at, err := time.Parse(time.RFC3339, expires)
		if err != nil {
			t.Fatal(err)
		}
		tok.Expires = at
	}
	text, err := access.Entry(token, tok)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func on(tables string, may ...string) access.Scope {
	return access.Scope{Tables: strings.Fields(tables), May: may}
}

func hashOf(t testing.TB, password string) string {
	h, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(h)
}

func TestATokenIsTakenInEveryForm(t *testing.T) {
	token := access.NewToken()
	w := newWorld(t, "", "tokens:\n"+entry(t, token, "telegraf", "", on("a", "write"))).mustOpen()
	remote := func() string { return "192.0.2.1:1000" }
	for _, c := range []access.Credentials{
		as("Bearer " + token), as("bearer  " + token + " "), as("Token " + token), as("Token anybody:" + token),
		as(basic("anybody", token)), as(basic("", token)), {Users: []string{"u"}, Passwords: []string{token}, Remote: remote},
		{Passwords: []string{token, token}, Remote: remote},
	} {
		w.wants("telegraf", c)
	}
	for _, header := range []string{"", "Bearer", "Bearer ", "Digest x", "Basic !", "Basic " + base64.StdEncoding.EncodeToString([]byte("no colon"))} {
		w.wants("!401 malformed", as(header))
	}
	for _, header := range []string{"Bearer " + token + "x", "Bearer " + token[1:], "Token user:", "Token :", basic(token, ""), "Bearer \x00"} {
		w.wants("!401 unknown", as(header))
	}
	w.wants("!401 missing", access.Credentials{Remote: remote})
	two := as("Bearer " + token)
	two.Authorization = append(two.Authorization, "Bearer "+token)
	w.wants("!401 malformed", two)
	w.wants("!401 malformed", access.Credentials{Users: []string{"u"}, Passwords: []string{token, "other"}, Remote: remote})
	w.wants("!401 malformed", access.Credentials{Users: []string{"u", ""}, Passwords: []string{token}, Remote: remote})
	if strings.Contains(w.log.String(), token) {
		t.Errorf("the log shows the token: %s", &w.log)
	}
}

func TestScopes(t *testing.T) {
	token := access.NewToken()
	w := newWorld(t, "", "tokens:\n"+entry(t, token, "x", "",
		on("a team-*", "write"), on("a", "read"), on("ops", "admin"), on("b*d", "read"))).mustOpen()
	id := w.wants("x", as("Bearer "+token))
	f := func(v access.Verb, table string, want bool) {
		t.Helper()
		if id.May(v, table) != want || (id.Check(v, table) == nil) != want {
			t.Errorf("%s %s: %t, want %t", v, table, !want, want)
		}
	}
	f(access.Read, "a", true)
	f(access.Write, "a", true)
	f(access.Admin, "a", false)
	f(access.Write, "team-x", true)
	f(access.Read, "team-x", false)
	f(access.Write, "team", false)
	f(access.Write, "A", false)
	f(access.Write, "a.", false)
	f(access.Write, "", false)
	f(access.Read, "ops", true)
	f(access.Write, "ops", true)
	f(access.Admin, "ops", true)
	f(access.Read, "bd", true)
	f(access.Read, "b.x-d", true)
	f(access.Read, "bdx", false)
	f(access.Read, "*", false)
	if id.MayAll(access.Read) || access.NeedReadAll.Check(id, "") == nil || access.NeedMetrics.Check(id, "") == nil {
		t.Error("scopes of some tables cover the process")
	}
	var nobody *access.Identity
	if nobody.May(access.Read, "a") || access.NeedIdentity.Check(nobody, "") == nil || access.Need(0).Check(access.Everyone(), "a") == nil {
		t.Error("no identity, or a route without a need, is let through")
	}
	err := access.NeedAdmin.Check(id, "b")
	if !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), `"x" lacks the right "admin" on table "b"`) {
		t.Errorf("refusal: %v", err)
	}
}

func TestProcessScopes(t *testing.T) {
	scraper, grafana := access.NewToken(), access.NewToken()
	w := newWorld(t, "", "tokens:\n"+entry(t, scraper, "scraper", "", access.Scope{May: []string{"metrics"}})+entry(t, grafana, "grafana", "", on("*", "read"))).mustOpen()
	s, g := w.wants("scraper", as("Bearer "+scraper)), w.wants("grafana", as("Bearer "+grafana))
	if access.NeedMetrics.Check(s, "") != nil || s.May(access.Read, "a") || access.NeedReadAll.Check(s, "") == nil {
		t.Error("metrics are metrics")
	}
	if access.NeedMetrics.Check(g, "") != nil || access.NeedReadAll.Check(g, "") != nil || access.NeedAdminAll.Check(g, "") == nil {
		t.Error("reading every table is reading the process, and not changing it")
	}
}

func TestTokensExpire(t *testing.T) {
	old, fresh := access.NewToken(), access.NewToken()
	w := newWorld(t, "", "tokens:\n"+entry(t, old, "old", "2026-01-01T00:00:00Z", on("*", "read"))+entry(t, fresh, "fresh", "2999-01-01T00:00:00Z", on("*", "read"))).mustOpen()
	w.wants("!401 expired", as("Bearer "+old))
	w.wants("fresh", as("Bearer "+fresh))
}

func TestBadTokensFilesRefuseTheStart(t *testing.T) {
	good := strings.Repeat("ab", 32)
	scopes := "scopes: [{tables: [a], may: [read]}]"
	f := func(text string, says ...string) {
		t.Helper()
		w := newWorld(t, "", text)
		err := w.open()
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), w.set.TokensFile) {
			t.Errorf("%s: %v", text, err)
			return
		}
		for _, s := range says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v, want %q", text, err, s)
			}
		}
	}
	f("#", "no key tokens")
	f("tokens:\n", "no key tokens")
	f("tokens: []\nusers: []", "users")
	f("tokens: []\n---\ntokens: []", "more than one")
	f("tokens: [{name: a, token: x}]", "line 1", "token")
	f("tokens: [{name: a, sha256: "+good+", "+scopes+"}, {name: a, sha256: "+good[2:]+"00, "+scopes+"}]", "token 2", "taken")
	f("tokens: [{name: a, sha256: "+good+", "+scopes+"}, {name: b, sha256: "+good+", "+scopes+"}]", "token 2", `token "a"`)
	f("tokens: [{name: '', sha256: short, scopes: []}]", "token 1", "name:", "sha256:", "scopes:")
	f("tokens: [{name: a, sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855, "+scopes+"}]", "empty token")
	f("tokens: [{name: a, sha256: "+good+", scopes: [{tables: [a], may: [delete]}]}]", "delete")
	f("tokens: [{name: a, sha256: "+good+", scopes: [{tables: [], may: [read]}]}]", "tables:")
	f("tokens: [{name: a, sha256: "+good+", scopes: [{tables: ['a/b'], may: [read]}]}]", "a/b")
	f("tokens: [{name: a, sha256: "+good+", scopes: [{tables: ['*****'], may: [read]}]}]", "stars")
	f("tokens: [{name: a, sha256: "+good+", scopes: [{tables: ['[a]'], may: [read]}]}]", "letters")
	f("tokens: [{name: a, sha256: "+good+", "+scopes+", expires: soon}]", "soon")
}

func TestPasswordsAreHashedOnce(t *testing.T) {
	w := newWorld(t, fmt.Sprintf("basic_auth_users: {ops: %q}\n", hashOf(t, "secret")), "").mustOpen()
	for range 5 {
		id := w.wants("ops", as(basic("ops", "secret")))
		if !id.MayAll(access.Admin) {
			t.Error("a user of the web-config file may do everything")
		}
		w.wants("ops", as("Token ops:secret"))
		w.wants("!401 unknown", as(basic("ops", "wrong")))
		w.wants("!401 unknown", as(basic("nobody", "secret"))) // though it is the password of the decoy
	}
	if n := w.metric("spillway_access_hashed_passwords_total", ""); n != 3 {
		t.Errorf("%v passwords were hashed, want one each", n)
	}
	w.write("web.yml", fmt.Sprintf("basic_auth_users: {ops: %q}\n", hashOf(t, "other")))
	if err := w.g.Reload(); err != nil {
		t.Fatal(err)
	}
	w.wants("!401 unknown", as(basic("ops", "secret"))) // remembered, and not accepted
	w.wants("ops", as(basic("ops", "other")))
}

// TestASenderAtWorkIsNotStoppedByItsNeighbour: both have one address, as behind a proxy; one guesses.
func TestASenderAtWorkIsNotStoppedByItsNeighbour(t *testing.T) {
	token := access.NewToken()
	w := newWorld(t, fmt.Sprintf("basic_auth_users: {ops: %q, late: %q}\n", hashOf(t, "secret"), hashOf(t, "secret")),
		"tokens:\n"+entry(t, token, "telegraf", "", on("a", "write"))).mustOpen()
	w.wants("ops", as(basic("ops", "secret")))
	for i := range 200 {
		_, _ = w.g.Identify(as(basic("ops", fmt.Sprint(i))))
	}
	if n := w.metric("spillway_access_hashed_passwords_total", ""); n > 40 {
		t.Errorf("%v of 200 guesses were hashed", n)
	}
	w.wants("!429 throttled", as(basic("late", "secret")))
	w.wants("telegraf", as("Bearer "+token))
	w.wants("ops", as(basic("ops", "secret")))
	elsewhere := as(basic("late", "secret"))
	elsewhere.Remote = func() string { return "[2001:db8::1]:1000" }
	w.wants("late", elsewhere)
}

// TestAHalfWrittenFileOpensNoDoor: a file that is being written is empty for a moment.
func TestAHalfWrittenFileOpensNoDoor(t *testing.T) {
	token := access.NewToken()
	tokens := "tokens:\n" + entry(t, token, "telegraf", "", on("a", "write"))
	web := fmt.Sprintf("basic_auth_users: {ops: %q}\n", hashOf(t, "secret"))
	w := newWorld(t, web, tokens).mustOpen()
	for n := range len(tokens) {
		w.write("tokens.yml", tokens[:n])
		_ = w.g.Reload()
		if id, err := w.g.Identify(as("Bearer x")); err == nil {
			t.Fatalf("with %d bytes of the tokens file %q was let in", n, id.Name)
		}
	}
	w.write("tokens.yml", tokens)
	for n := range len(web) {
		w.write("web.yml", web[:n])
		if err := w.g.Reload(); err == nil && n < len(web)-3 {
			t.Fatalf("%d bytes of the web-config file were taken", n)
		}
		if _, err := w.g.Identify(access.Credentials{Remote: func() string { return "" }}); err == nil {
			t.Fatalf("with %d bytes of the web-config file everybody was let in", n)
		}
		w.wants("telegraf", as("Bearer "+token))
	}
	if w.metric("spillway_access_last_reload_successful", "") != 1 && w.metric("spillway_access_reloads_total", "failed") == 0 {
		t.Error("failed reloads are not counted")
	}
}

// TestNoTokenIsRefusedWhileItsFileIsWritten: an editor that writes in place leaves the first tokens alone for a moment, which is a good file, too.
func TestNoTokenIsRefusedWhileItsFileIsWritten(t *testing.T) {
	first, second := access.NewToken(), access.NewToken()
	half := "tokens:\n" + entry(t, first, "first", "", on("a", "write"))
	whole := half + entry(t, second, "second", "", on("a", "write"))
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "", whole).mustOpen()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.g.Run(ctx) }()
		time.Sleep(500 * time.Millisecond) // all below lies between two looks, one a second
		for range 3 {
			time.Sleep(time.Second)
			w.write("tokens.yml", half)
			time.Sleep(time.Second) // one look sees the half
			w.wants("second", as("Bearer "+second))
			w.write("tokens.yml", whole)
		}
		w.write("tokens.yml", half)
		time.Sleep(3 * time.Second)
		w.wants("!401 unknown", as("Bearer "+second))
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestChangesAreTakenWithoutARestart(t *testing.T) {
	first, second := access.NewToken(), access.NewToken()
	w := newWorld(t, "", "tokens:\n"+entry(t, first, "first", "", on("a", "write"))).mustOpen()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.g.Run(ctx) }()
	w.write("tokens.yml", "tokens:\n"+entry(t, second, "second", "", on("a", "write")))
	// Failed attempts count against an address: those made while waiting must not use up those of the check below.
	elsewhere := as("Bearer " + second)
	elsewhere.Remote = func() string { return "[2001:db8::1]:1000" }
	for {
		if _, err := w.g.Identify(elsewhere); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.wants("!401 unknown", as("Bearer "+first))
	if err := os.Remove(w.set.TokensFile); err != nil {
		t.Fatal(err)
	}
	if err := w.g.Reload(); !fault.Is(err, fault.Invalid) {
		t.Errorf("a file that is gone: %v", err)
	}
	w.wants("second", as("Bearer "+second))
	if w.metric("spillway_access_last_reload_successful", "") != 0 {
		t.Error("the metric says that the last reload was good")
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// certificate writes NAME.crt and NAME.key for 127.0.0.1, self-signed.
func (w *world) certificate(name string) (pool *x509.CertPool, serial *big.Int) {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	w.made++
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(int64(w.made)), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"client.example"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		w.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		w.t.Fatal(err)
	}
	crt := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	w.write(name+".crt", string(crt))
	w.write(name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})))
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(crt)
	return pool, cert.SerialNumber
}

// shake makes one handshake with the guard's TLS.
func (w *world) shake(c *tls.Config) (*tls.ConnectionState, error) {
	w.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer ln.Close()
	served := make(chan error, 1)
	go func() {
		raw, err := ln.Accept()
		if err == nil {
			conn := tls.Server(raw, w.g.TLS())
			if err = conn.Handshake(); err == nil {
				_, err = conn.Write([]byte("!"))
			}
			_ = conn.Close()
		}
		served <- err
	}()
	conn, err := tls.Dial("tcp", ln.Addr().String(), c)
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 1)) // TLS 1.3: a client certificate is judged after the client's handshake
		defer conn.Close()
	}
	if serverErr := <-served; serverErr != nil {
		err = serverErr
	}
	if err != nil {
		return nil, err
	}
	state := conn.ConnectionState()
	return &state, nil
}

func TestCertificatesAreSwappedWithoutARestart(t *testing.T) {
	w := newWorld(t, "tls_server_config: {cert_file: s.crt, key_file: s.key}\n", "")
	pool, serial := w.certificate("s")
	w.mustOpen()
	state, err := w.shake(&tls.Config{RootCAs: pool, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil || state.PeerCertificates[0].SerialNumber.Cmp(serial) != 0 || state.NegotiatedProtocol != "h2" || state.Version != tls.VersionTLS13 {
		t.Fatalf("%+v, %v", state, err)
	}
	fresh, newSerial := w.certificate("fresh")
	key, _ := os.ReadFile(filepath.Join(w.dir, "fresh.key"))
	crt, _ := os.ReadFile(filepath.Join(w.dir, "fresh.crt"))
	w.write("s.key", string(key)) // the pair does not match for a moment
	if err := w.g.Reload(); !fault.Is(err, fault.Invalid) {
		t.Errorf("a key of another certificate was taken: %v", err)
	}
	if _, err := w.shake(&tls.Config{RootCAs: pool}); err != nil {
		t.Errorf("the old certificate is gone: %v", err)
	}
	w.write("s.crt", string(crt))
	if err := w.g.Reload(); err != nil {
		t.Fatal(err)
	}
	state, err = w.shake(&tls.Config{RootCAs: fresh})
	if err != nil || state.PeerCertificates[0].SerialNumber.Cmp(newSerial) != 0 {
		t.Errorf("the new certificate is not served: %v", err)
	}
	w.write("web.yml", "")
	if err := w.g.Reload(); err == nil || w.g.TLS() == nil {
		t.Error("an empty file switched TLS off")
	}
}

// TestAHalfWrittenFileAsksForCertificatesStill: its beginning has TLS, and neither client_auth_type nor the names that certificates must have.
func TestAHalfWrittenFileAsksForCertificatesStill(t *testing.T) {
	const asks = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: c.crt\n"
	web := "tls_server_config:\n  cert_file: s.crt\n  key_file: s.key\n" + asks + "  client_allowed_sans: [client.example]\n"
	w := newWorld(t, web, "")
	pool, _ := w.certificate("s")
	w.certificate("c")
	w.mustOpen()
	for n := range len(web) {
		w.write("web.yml", web[:n])
		_ = w.g.Reload()
		if now, _ := w.g.TLS().GetConfigForClient(nil); now.ClientAuth != tls.RequireAndVerifyClientCert || now.VerifyPeerCertificate == nil {
			t.Fatalf("with %d bytes of the file any certificate is let in, or none is asked for: %q", n, web[:n])
		}
	}
	if _, err := w.shake(&tls.Config{RootCAs: pool}); err == nil {
		t.Error("a client without a certificate was let in")
	}
	w.write("web.yml", web+"# a change\n")
	if err := w.g.Reload(); err != nil {
		t.Error(err)
	}
}

func TestClientCertificates(t *testing.T) {
	w := newWorld(t, `tls_server_config: {cert_file: s.crt, key_file: s.key, client_ca_file: c.crt, client_auth_type: RequireAndVerifyClientCert,
  client_allowed_sans: [client.example], min_version: TLS12, max_version: TLS12, cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]}
http_server_config: {http2: false, headers: {Strict-Transport-Security: max-age=60}}
`, "")
	pool, _ := w.certificate("s")
	w.certificate("c")
	w.certificate("stranger")
	w.mustOpen()
	dial := func(name string) (*tls.ConnectionState, error) {
		c := &tls.Config{RootCAs: pool, NextProtos: []string{"h2", "http/1.1"}}
		if name != "" {
			cert, err := tls.LoadX509KeyPair(filepath.Join(w.dir, name+".crt"), filepath.Join(w.dir, name+".key"))
			if err != nil {
				t.Fatal(err)
			}
			c.Certificates = []tls.Certificate{cert}
		}
		return w.shake(c)
	}
	state, err := dial("c")
	if err != nil || state.Version != tls.VersionTLS12 || state.CipherSuite != tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 || state.NegotiatedProtocol != "http/1.1" {
		t.Errorf("%+v, %v", state, err)
	}
	for _, name := range []string{"", "stranger"} {
		if _, err := dial(name); err == nil {
			t.Errorf("certificate %q was let in", name)
		}
	}
	if h := w.g.Headers(); len(h) != 1 || h[0] != (access.Header{Name: "Strict-Transport-Security", Value: "max-age=60"}) {
		t.Errorf("headers %v", h)
	}
	if w.metric("spillway_access_certificate_expiry_timestamp_seconds", "") < float64(time.Now().Unix()) {
		t.Error("no expiry of the certificate")
	}
}

func TestBadWebFilesRefuseTheStart(t *testing.T) {
	f := func(text, says string) {
		t.Helper()
		w := newWorld(t, text, "")
		w.certificate("s")
		if err := w.open(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), w.set.WebFile) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
	f("tls_server_confg: {}", "tls_server_confg")
	f("tls_server_config: {cert_file: absent.crt, key_file: s.key}", "absent.crt")
	f("tls_server_config: {cert_file: s.crt}", "key_file")
	f("tls_server_config: {cert_file: s.crt, key_file: s.crt}", "X509KeyPair")
	f("tls_server_config: {cert_file: s.crt, key_file: s.key, client_ca_file: s.key, client_auth_type: RequireAndVerifyClientCert}", "client_ca")
	f("tls_server_config: {cert_file: s.crt, key_file: s.key, client_ca_file: s.crt}", "client_auth_type")
	f("tls_server_config: {cert_file: s.crt, key_file: s.key, client_auth_type: Maybe}", "Maybe")
	f("tls_server_config: {cert_file: s.crt, key_file: s.key, min_version: TLS14}", "TLS14")
	f("basic_auth_users: {ops: plain}", "bcrypt")
	f("basic_auth_users: {ops: $2a$31$vDWkRseVR4yf4PVInjd33OVy/0RwYSix1VxlwRFEXq4FPjHLiV63S}", "cost")
	f("http_server_config: {headers: {X-Mine: y}}", "X-Mine")
	f("rate_limit: {interval: 1s}", "burst")
	f("basic_auth_users: {}\n---\n{}", "more than one")
}

func TestNoFilesLetEverybodyIn(t *testing.T) {
	w := newWorld(t, "", "").mustOpen()
	id := w.wants("anonymous", access.Credentials{})
	if !w.g.Open() || w.g.TLS() != nil || !id.MayAll(access.Admin) || !id.MayAll(access.Metrics) {
		t.Error("access control without files")
	}
}

func TestRateLimit(t *testing.T) {
	w := newWorld(t, "rate_limit: {interval: 1h, burst: 2}\n", "").mustOpen()
	w.wants("anonymous", access.Credentials{})
	w.wants("anonymous", access.Credentials{})
	w.wants("!429 rate", access.Credentials{})
	if w.g.Open() {
		t.Error("a limited door is not open")
	}
}

func FuzzTokensFile(f *testing.F) {
	f.Add("tokens:\n- name: a\n  sha256: " + strings.Repeat("ab", 32) + "\n  scopes: [{tables: [a, 'b*'], may: [read]}]\n")
	f.Add("tokens: []")
	f.Add("tokens: &a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		w := newWorld(t, "", text+" ")
		err := w.open()
		if err != nil && !fault.Is(err, fault.Invalid) {
			t.Fatalf("kind %v: %v", fault.KindOf(err), err)
		}
		if err == nil && w.g.Open() {
			t.Fatal("a tokens file left the door open")
		}
	})
}

func FuzzAuthorization(f *testing.F) {
	for _, s := range []string{"Bearer x", "Token a:b", "Basic YTpi", "basic", ":"} {
		f.Add(s)
	}
	w := newWorld(f, "", "tokens: []\n").mustOpen()
	f.Fuzz(func(t *testing.T, header string) {
		if id, err := w.g.Identify(as(header)); err == nil {
			t.Fatalf("%q was let in as %q", header, id.Name)
		}
	})
}

func BenchmarkIdentify(b *testing.B) {
	token := access.NewToken()
	w := newWorld(b, fmt.Sprintf("basic_auth_users: {ops: %q}\n", hashOf(b, "secret")), "tokens:\n"+entry(b, token, "telegraf", "", on("a team-*", "write"))).mustOpen()
	for name, c := range map[string]access.Credentials{"token": as("Bearer " + token), "basic-token": as(basic("u", token)), "password": as(basic("ops", "secret"))} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				id, err := w.g.Identify(c)
				if err != nil || !id.May(access.Write, "team-x") {
					b.Fatal(err)
				}
			}
		})
	}
}

package access_test

import (
	"strings"
	"testing"

	"github.com/prometheus/exporter-toolkit/web"
)

// The same files are accepted and refused as by Prometheus' toolkit.
func TestFilesMeanWhatTheyMeanToPrometheus(t *testing.T) {
	for _, text := range []string{
		"",
		"{}",
		"tls_server_config: {}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, prefer_server_cipher_suites: true}",
		"tls_server_config: {cert_file: s.crt}",
		"tls_server_config: {key_file: s.key}",
		"tls_server_config: {client_auth_type: NoClientCert}",
		"tls_server_config: {cert: x, key: y}",
		"tls_server_config: {cert_file: s.crt, key_file: c.key}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, client_ca_file: c.crt}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, client_ca_file: c.crt, client_auth_type: NoClientCert}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, client_ca_file: absent, client_auth_type: VerifyClientCertIfGiven}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, client_ca_file: c.crt, client_auth_type: VerifyClientCertIfGiven}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, client_ca_file: c.crt, client_auth_type: RequireClientCert}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, client_auth_type: RequestClientCert}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, client_auth_type: RequireAnyClientCert}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, client_ca_file: c.crt, client_auth_type: requireandverifyclientcert}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, client_ca_file: c.crt, client_auth_type: RequireAndVerifyClientCert, client_allowed_sans: [a, b]}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, min_version: TLS10, max_version: TLS11}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, min_version: TLS13, max_version: TLS13}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, min_version: 1.2}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, curve_preferences: [CurveP256, CurveP384, CurveP521, X25519]}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, curve_preferences: [P256]}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]}",
		"tls_server_config: {cert_file: s.crt, key_file: s.key, cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]}",
		"http_server_config: {http2: false}",
		"http_server_config: {http2: maybe}",
		"http_server_config: {headers: {X-Frame-Options: deny, X-XSS-Protection: anything, Content-Security-Policy: default-src 'self'}}",
		"http_server_config: {headers: {X-Frame-Options: allow}}",
		"http_server_config: {headers: {X-Content-Type-Options: nosniff, Strict-Transport-Security: max-age=1}}",
		"http_server_config: {headers: {x-frame-options: deny}}",
		"rate_limit: {interval: 1s, burst: 20}",
		"rate_limit: {interval: 1x}",
		"basic_auth_users: {ops: $2y$04$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi}",
		"basic_auth_users: {ops: secret}",
		"no_such_key: 1",
	} {
		w := newWorld(t, text+"\n", "")
		w.certificate("s")
		w.certificate("c")
		theirs, ours := web.Validate(w.set.WebFile), w.open()
		if (theirs == nil) != (ours == nil) {
			t.Errorf("%q: the toolkit says %v, and Spillway %v", text, theirs, ours)
		}
		if ours != nil && !strings.Contains(ours.Error(), w.set.WebFile) {
			t.Errorf("%q: %v does not name the file", text, ours)
		}
	}
}

package client

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Flags are a command's credentials and checks for a call to a running process.
type Flags struct {
	TokenFile string `name:"token-file" help:"File with a token, where the process asks for one." type:"path" env:"SPILLWAY_TOKEN_FILE"`
	CAFile    string `name:"ca-file" help:"File with the authority of its certificate (default: those of the system)." type:"path" env:"SPILLWAY_CA_FILE"`
}

// Do sends a request that is answered at once. Errors: Invalid (the files), Unavailable.
func (c Flags) Do(rq *http.Request) (*http.Response, error) {
	return c.Send(rq, 10*time.Second)
}

// Send sends a request and gives its answer some time to be complete; 0: no limit. Errors: Invalid (the files),
// Unavailable.
func (c Flags) Send(rq *http.Request, within time.Duration) (*http.Response, error) {
	do, err := c.Sender(within, false)
	if err != nil {
		return nil, err
	}
	return do(rq)
}

// Sender makes a function that sends requests with the credentials; keep leaves connections open for the next one. Errors
// are those of Send.
func (c Flags) Sender(within time.Duration, keep bool) (func(*http.Request) (*http.Response, error), error) {
	authorization := ""
	if c.TokenFile != "" {
		token, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "--token-file")
		}
		authorization = "Bearer " + strings.TrimSpace(string(token))
	}
	transport := &http.Transport{DisableKeepAlives: !keep, MaxIdleConnsPerHost: 64}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "--ca-file")
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fault.Errorf(fault.Invalid, "--ca-file %s holds no certificate in PEM form", c.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	client := &http.Client{Timeout: within, Transport: transport}
	return func(rq *http.Request) (*http.Response, error) {
		if s := rq.URL.Scheme; s != "http" && s != "https" || rq.URL.Host == "" { // "localhost:8428" has the scheme localhost
			return nil, fault.Errorf(fault.Invalid, "%s is no address of a process: it must be as http://HOST:PORT", rq.URL.Redacted())
		}
		if authorization != "" {
			rq.Header.Set("Authorization", authorization)
		}
		resp, err := client.Do(rq)
		if err != nil {
			var call *url.Error // names the method and the whole address, with parameters that were not typed
			if errors.As(err, &call) {
				err = call.Err
			}
			var unverified *tls.CertificateVerificationError
			if errors.As(err, &unverified) {
				return resp, fault.Wrap(err, fault.Invalid, "--ca-file must name the authority of the certificate of %s", rq.URL.Host)
			}
			return resp, fault.Wrap(err, fault.Unavailable, "no answer from %s://%s; is spillway running there?", rq.URL.Scheme, rq.URL.Host)
		}
		return resp, nil
	}, nil
}

// NoURL is the error for a --url that is no address of a process, as 127.0.0.1:8428.
func NoURL(url string) error {
	return fault.Errorf(fault.Invalid, "--url must be as http://HOST:PORT, not %q", url)
}

// Refused makes an error of an answer that is no success, of the process at a URL for writes and queries.
func Refused(url string, resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // an answer that breaks off is no less an answer
	text := strings.TrimSpace(string(b))
	var envelope struct{ Error string }
	if json.Unmarshal(b, &envelope) == nil && envelope.Error != "" {
		text = envelope.Error
	}
	if resp.StatusCode == http.StatusNotFound && (text == "" || text == "404 page not found") { // not a process of this version
		text = "is it the address of a standalone process or a gateway for writes and queries (http.listen, port 8428 unless it is set)?"
	}
	return fault.Errorf(fault.Unavailable, "%s answered %s: %s", url, resp.Status, text)
}

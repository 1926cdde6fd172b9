package client

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestAnAddressWithoutItsSchemeIsSaidToLackIt: "localhost:8428" was an unsupported protocol, and the question whether spillway runs there.
func TestAnAddressWithoutItsSchemeIsSaidToLackIt(t *testing.T) {
	for _, url := range []string{"localhost:8428", "127.0.0.1:8428", "ftp://localhost", "localhost", "http://", "/data"} {
		err := (&Query{Expr: "up", Server: Server{URL: url}}).Run()
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "http://HOST:PORT") {
			t.Errorf("%s: %v", url, err)
		}
	}
	rq, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (Flags{}).Do(rq); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a process that does not run: %v", err)
	}
}

// TestAProcessThatDoesNotRunIsNamedOnce: the message had the address twice, and parameters that were not typed.
func TestAProcessThatDoesNotRunIsNamedOnce(t *testing.T) {
	rq, err := http.NewRequest(http.MethodDelete, "http://127.0.0.1:1/api/v1/admin/tables/hosts?by=me%40here&dry_run=false", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = (Flags{}).Do(rq)
	if err == nil || !strings.HasPrefix(err.Error(), "no answer from http://127.0.0.1:1; is spillway running there?: dial tcp 127.0.0.1:1: ") || strings.Contains(err.Error(), "dry_run") {
		t.Errorf("%v", err)
	}
}

// TestACertificateOfAnUnknownAuthorityAsksForItsFile: the command asked whether spillway runs there.
func TestACertificateOfAnUnknownAuthorityAsksForItsFile(t *testing.T) {
	at := httptest.NewTLSServer(http.NotFoundHandler())
	defer at.Close()
	rq, err := http.NewRequest(http.MethodGet, at.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (Flags{}).Do(rq); !fault.Is(err, fault.Invalid) || !strings.HasPrefix(err.Error(), "--ca-file must name the authority of the certificate of 127.0.0.1:") {
		t.Errorf("%v", err)
	}
}

package client

import (
	"net/http"
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

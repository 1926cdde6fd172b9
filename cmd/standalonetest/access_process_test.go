package standalonetest

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/gateway/access"
)

// TestABadTokensFileRefusesTheStartAndStopsNoRunningProcess: an operator edits the file of a running process.
func TestABadTokensFileRefusesTheStartAndStopsNoRunningProcess(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.yml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made := func(name string) (token, text string) {
		t.Helper()
		token = access.NewToken()
		entry, err := access.Entry(token, access.Token{Name: name, Scopes: []access.Scope{{Tables: []string{"hosts"}, May: []string{"write"}}}})
		if err != nil {
			t.Fatal(err)
		}
		return token, "tokens:\n" + entry
	}
	first, firstText := made("first")
	second, secondText := made("second")

	p := processtest.New(t, "SPILLWAY_HTTP_TOKENS_FILE="+file)
	write(strings.Replace(firstText, "may:", "mya:", 1))
	refused := exec.Command(p.Bin, "standalone", "--data-dir="+filepath.Join(p.Dir, "never"), "--http.listen=127.0.0.1:0", "--admin.listen=")
	refused.Env = p.Env
	out, err := refused.CombinedOutput()
	if refused.ProcessState.ExitCode() != terminal.ExitUsage || !bytes.Contains(out, []byte(file)) || !bytes.Contains(out, []byte("mya")) || bytes.Contains(out, []byte("goroutine")) {
		t.Errorf("a bad file at the start: %v\n%s", err, out)
	}

	write(firstText)
	p.Start()
	status := func(token string) int {
		t.Helper()
		code, _, err := p.Do(http.MethodPost, "/write?db=hosts", http.Header{"Authorization": {"Token " + token}}, []byte("cpu v=1 1"))
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	if got := status(first); got != http.StatusNoContent {
		t.Errorf("the first token: %d", got)
	}
	if got := status(second); got != http.StatusUnauthorized {
		t.Errorf("an unknown token: %d", got)
	}
	write("") // as an editor does before it writes
	if err := p.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if got := status(first); got != http.StatusNoContent {
		t.Errorf("the first token while the file is empty: %d", got)
	}
	write(secondText)
	if err := p.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for status(second) != http.StatusNoContent {
		time.Sleep(50 * time.Millisecond)
	}
	if got := status(first); got == http.StatusNoContent {
		t.Error("the first token is taken, though the file has it no more")
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, token := range []string{first, second} {
		if strings.Contains(p.Log.String(), token) {
			t.Errorf("the log shows a token:\n%s", &p.Log)
		}
	}
}

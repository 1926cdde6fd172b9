package settings

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestConfigCheckReadsTheFilesOfAccess: the unit's reload checks by it, and a mistake in them was sent to the process, which went on with the old ones.
func TestConfigCheckReadsTheFilesOfAccess(t *testing.T) {
	for _, key := range []string{"tokens_file", "web_config_file"} {
		dir := t.TempDir()
		access, file := filepath.Join(dir, "access.yml"), filepath.Join(dir, "spillway.yml")
		write := func(path, text string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(file, "http: {"+key+": "+access+"}\n")
		check := configCheckCmd{configSource{File: file}}
		wrong := func(says string) {
			t.Helper()
			if err := check.Run(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), access) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want one with %q", key, err, says)
			}
		}
		wrong("no such file")
		write(access, "tokns: []\n")
		wrong("tokns")
		write(access, map[string]string{"tokens_file": "tokens: []\n", "web_config_file": "http_server_config: {http2: true}\n"}[key])
		if err := check.Run(); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

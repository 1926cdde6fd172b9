package processtest

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/setting"
)

// EnvDuration is a size of a test.
func EnvDuration(t *testing.T, name string, def time.Duration) time.Duration {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatalf("%s=%s: %v", name, s, err)
	}
	return d
}

// Patience bounds a test's waits. Some last for minutes where others keep the disk busy, so that an fsync lasts for a tenth of a second; what needs
// longer never comes.
const Patience = 5 * time.Minute

// NoSettings removes the settings from the test's environment, the sizes of tests among them.
func NoSettings(t *testing.T) {
	for _, e := range os.Environ() {
		if name, value, _ := strings.Cut(e, "="); strings.HasPrefix(name, setting.EnvironPrefix) {
			t.Setenv(name, value) // puts it back at the end
			os.Unsetenv(name)
		}
	}
}

// EnvInt is a size of a test.
func EnvInt(t *testing.T, name string, def int) int {
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s=%s: %v", name, s, err)
	}
	return n
}

package server_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

// startsFailed: Pebble failed to open, which leaves goroutines behind.
var startsFailed atomic.Bool

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 && !startsFailed.Load() {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

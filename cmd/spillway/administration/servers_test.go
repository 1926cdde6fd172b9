package administration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/connect"
)

// TestEveryServerThatDoesNotAnswerIsNamed: the error was that of the last address.
func TestEveryServerThatDoesNotAnswerIsNamed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := throughServers(ctx, []string{"127.0.0.1:1", "127.0.0.1:2"}, connect.Peer{Insecure: true})
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") || !strings.Contains(err.Error(), "127.0.0.1:2") {
		t.Error(err)
	}
}

package otlp

import (
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestAMistakeInJSONIsShown, and not the megabyte that it is part of: the answer was as long as the body.
func TestAMistakeInJSONIsShown(t *testing.T) {
	for _, number := range []string{"x", strings.Repeat("9", 1_000_000), strings.Repeat("é", 1_000_000)} {
		body := `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"a","gauge":{"dataPoints":[{"timeUnixNano":"` + number + `"}]}}]}]}]}`
		_, err := fromJSON([]byte(body))
		if !fault.Is(err, fault.Invalid) || len(err.Error()) > 2*mistakeMax || !strings.Contains(err.Error(), "fixed64") {
			t.Errorf("a time of %d bytes: %.400v", len(number), err)
		}
	}
}

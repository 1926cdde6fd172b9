package exchange

import (
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestAFileAfterFromIsNotTakenForAServerThatIsDown: the user asked for the import of a file.
func TestAFileAfterFromIsNotTakenForAServerThatIsDown(t *testing.T) {
	for _, from := range []string{"a.om", "./dir/a.om", "localhost:8428", "ftp://there"} {
		_, err := (&Import{From: from, Senders: 4}).plan(t.Context())
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "--from "+from+" is no URL") || !strings.Contains(err.Error(), "spillway import "+from) {
			t.Errorf("--from %s: %v", from, err)
		}
	}
}

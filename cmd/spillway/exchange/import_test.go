package exchange

import (
	"os"
	"path/filepath"
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

// TestAFileThatIsNotThereIsSaidNotToBe: the user was asked for its format.
func TestAFileThatIsNotThereIsSaidNotToBe(t *testing.T) {
	for source, want := range map[string]string{"none/prometheus": "no such file or directory", "-": "give --format"} {
		if _, err := (&Import{Source: source, Senders: 4}).plan(t.Context()); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("import %s: %v", source, err)
		}
	}
}

// TestAnImportOfAnotherTableIsNotGoneOnWith: an interrupted import notes how far it came, and one of another table of the same server went on from there: its rows before were
// left out.
func TestAnImportOfAnotherTableIsNotGoneOnWith(t *testing.T) {
	what := func(table string) string {
		m, _ := (&Import{From: "http://127.0.0.1:1", FromTable: table, Senders: 1}).plan(t.Context()) // no server answers: the run is named all the same
		return m.What
	}
	if what("cpu") == what("mem") {
		t.Errorf("imports of two tables are both %q", what("cpu"))
	}
}

// TestAnImportInAnotherUnitIsNotGoneOnWith: the second command lacked --precision, so the rest of a file with times in seconds was imported as
// nanoseconds, in 1970.
func TestAnImportInAnotherUnitIsNotGoneOnWith(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.lp")
	if err := os.WriteFile(file, []byte("m v=1 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	what := func(format, precision string) string {
		m, err := (&Import{Source: file, Format: format, Precision: precision, Senders: 1}).plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return m.What
	}
	same := what("", "ns")
	for _, other := range []string{what("", "s"), what("prometheus", "ns")} {
		if other == same {
			t.Errorf("two runs that read the file differently are both %q", other)
		}
	}
	if named := what("line", "ns"); named != same {
		t.Errorf("a format that the name of the file says is not another run: %q, %q", named, same)
	}
}

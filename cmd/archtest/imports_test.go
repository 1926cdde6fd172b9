package archtest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// pure are the packages that must be right: machines and plans without a clock, a lock, I/O or goroutines.
const pure = "metadata/topology/... metadata/lease storage/chain storage/replica storage/staging storage/gate storage/lead/rules smear/... presplit/... gateway/follow gateway/ha gateway/deletion storage/unload"

// rule is one forbidden import. Patterns are those of the go tool, several stand apart by spaces; our own packages are
// named from the repository's root.
type rule struct {
	who     string
	not     string
	except  string // importers to which the rule does not apply
	tests   bool   // it applies to test files too
	because string
}

// importLaw is ordered as data flows: the rows (protocols), their place (metadata), their form on disk (storage), and
// the gateway, which joins them.
var importLaw = []rule{
	{who: "protocols/...", not: "gateway/... storage/... metadata/... smear/... presplit/...", tests: true,
		because: "formats do not depend on where rows go: both ends of every wire import them"},
	{who: "metadata/...", not: "gateway/... storage/...", tests: true,
		because: "where things belong is below those who take them and those who keep them"},
	{who: "smear/... presplit/...", not: "gateway/... storage/...", tests: true,
		because: "how long and when is arithmetic, asked by both sides"},
	{who: "storage/...", not: "gateway/...", tests: true,
		because: "a storage server runs without a gateway; they meet in protocols/peer"},
	{who: "gateway/...", not: "storage/...", tests: true,
		because: "a gateway keeps nothing, and speaks to storage only through protocols/peer; only cmd knows both"},
	{who: "...", not: "cmd/...", except: "cmd/...", tests: true,
		because: "commands are put together of packages, never the other way round"},

	{who: "...", not: "cmd/spillway/process", except: "cmd/spillway", tests: true,
		because: "commands need no process of their own, and tests of real processes look at them from outside"},
	{who: "cmd/spillway/view", not: "cmd/spillway/administration cmd/spillway/verify gateway/intake/... gateway/forward/... gateway/query/... gateway/api storage/...", tests: true,
		because: "a view of a cluster shows where rows belong; none pass through it"},
	{who: "cmd/clustertest cmd/standalonetest", not: "storage/brick storage/server/... storage/partition/... gateway/intake gateway/forward/... gateway/api", tests: true,
		because: "they test processes from outside; the parts have tests of their own, and meet in cmd/pathtest"},

	{who: "cmd/spillway/diagram", not: "cmd/... gateway/... storage/... metadata/... net/...", tests: true,
		because: "drawing knows the types of points, and neither what they mean nor where they come from"},

	{who: "cmd/spillway/terminal", not: "cmd/... gateway/... storage/... metadata/... net/...", tests: true,
		because: "what all commands share lies below each of them"},
	{who: "cmd/spillway/credentials", not: "cmd/... gateway/intake/... gateway/forward/... gateway/query/... storage/... metadata/... go.etcd.io/...", tests: true,
		because: "certificates and tokens are made of files alone, on a machine that need not run Spillway"},
	{who: "cmd/spillway/figures cmd/spillway/findings", not: "cmd/... storage/... metadata/coord/... net/... os/...",
		because: "what is shown is computed of maps and answers, whoever got them"},
	{who: "cmd/spillway/connect", not: "cmd/spillway/client cmd/spillway/figures cmd/spillway/findings gateway/... storage/...", tests: true,
		because: "all that speak with a cluster lie above the ways to it"},
	{who: "cmd/spillway/verify", not: "cmd/spillway/client cmd/spillway/connect gateway/forward/... gateway/query/... gateway/api metadata/coord/... net/...", tests: true,
		because: "an examination reads files; how a store is started is handed in"},
	{who: "cmd/spillway/settings", not: "cmd/spillway/client cmd/spillway/figures cmd/spillway/findings cmd/spillway/credentials net/...", tests: true,
		because: "settings are read and checked; nothing is opened by them, and no process is asked"},
	{who: "cmd/spillway/backups", not: "gateway/... metadata/...", tests: true,
		because: "an order for a backup needs no view of the cluster, and a restore makes a store of files"},
	{who: "cmd/spillway/exchange", not: "gateway/... storage/... metadata/...", tests: true,
		because: "rows leave and come through a process or through files of others; cmd/internal/transfer has their formats"},
	{who: "cmd/spillway/topics", not: "storage/... metadata/...", tests: true,
		because: "the lag of topics is asked over HTTP; gateway/intake/kafka has the form of the answer"},
	{who: "cmd/spillway/repair", not: "cmd/spillway/client cmd/spillway/connect gateway/... metadata/... net/...", tests: true,
		because: "a repair changes files, and asks no process"},
	{who: "cmd/spillway/completion", not: "cmd/... gateway/... storage/... metadata/... protocols/...", tests: true,
		because: "scripts for shells are made of the model of a command line, of whichever program"},
	{who: "cmd/spillway/administration", not: "cmd/spillway/backups cmd/spillway/exchange storage/... gateway/forward/... gateway/query/... metadata/coord/etcd/... metadata/coord/local", tests: true,
		because: "administrators steer a cluster through its coordination store and its peers; no rows pass through their commands"},
	{who: "cmd/spillway/client", not: "gateway/... storage/... metadata/...", tests: true,
		because: "a client knows a process by its HTTP API alone"},

	{who: pure, not: "net/... os/... sync/... context io/... log/... crypto/rand",
		because: "what must be right is a pure function of its inputs, so that a simulation can run it a million times"},

	{who: "...", not: "github.com/valyala/fasthttp/...", except: "gateway/intake", tests: true,
		because: "its bytes die with the handler; one package knows that and copies"},
	{who: "...", not: "github.com/twmb/franz-go/...", except: "gateway/intake/kafka/... cmd/cluster", tests: true,
		because: "Kafka is one of many doors; the demo stands before it, with a broker of its own"},
	{who: "...", not: "go.etcd.io/...", except: "metadata/coord/etcd/... cmd/etcd", tests: true,
		because: "a coordination store is six verbs in metadata/coord; only the demo and tests start a server of their own"},
	{who: "...", not: "github.com/cockroachdb/pebble/...", except: "storage/... metadata/coord/local protocols/database cmd/...", tests: true,
		because: "disk belongs to storage and to the coordination store of one process; cmd hands in the file system"},
	{who: "...", not: "google.golang.org/grpc/...", except: "protocols/peer/... gateway/forward/... gateway/query/... storage/server/... storage/replica/... metadata/coord/etcd cmd/...",
		because: "nodes speak through protocols/peer, which hides how; of etcd's connections the pauses are set"},

	{who: "...", not: "github.com/minio/...", except: "storage/backup/s3/...", tests: true,
		because: "a bucket is a place for backups like any other: one package knows its protocol"},
	{who: "...", not: "github.com/prometheus/prometheus/web/... github.com/prometheus/prometheus/storage/remote/...", tests: true,
		because: "they bring seven hundred packages: every service discovery there is"},
	{who: "...", not: "github.com/prometheus/prometheus/tsdb",
		because: "the engine reads from our storage; of theirs we use encodings only"},
	{who: "protocols/... metadata/... storage/...", not: "github.com/prometheus/prometheus/promql/... github.com/prometheus/prometheus/storage/...",
		because: "queries are understood by the gateway alone"},

	{who: "...", not: "log", tests: true,
		because: "one logger, log/slog, with stable keys"},
	{who: "...", not: "flag", except: "cmd/...",
		because: "settings come through Settings; a flag of a package is a global variable"},
	{who: "...", not: "testing/... pgregory.net/rapid", except: "metadata/coord/coordtest protocols/peer/peertest protocols/trace/tracetest gateway/query/promqlsuite gateway/intake/kafka/kafkatest cmd/clienttest/... cmd/internal/processtest",
		because: "the product is not a test; suites that packages share live in packages of their own"},
	{who: "...", not: "math/rand",
		because: "math/rand/v2 has the better generator and no global seed"},
	{who: "...", not: "unsafe", except: "storage/head storage/segment storage/deliver protocols/memory cmd/spillway/process protocols/peer/peerpb",
		because: "memory outside the collector, columns read in place, strings found by their address and pages of fresh memory are measured there, and nowhere else; protoc writes the rest"},
	{who: "...", not: "encoding/gob/... plugin/... github.com/pkg/errors github.com/stretchr/testify/...", tests: true,
		because: "faults keep their kind through protocols/fault, and tests say what they want in plain Go"},
}

// edge is one import.
type edge struct {
	from, to string // ours: from the repository's root
	test     bool
	file     string
}

func edges(pkgs []pkg) []edge {
	var out []edge
	for _, p := range pkgs {
		for _, f := range p.files {
			for _, imp := range f.tree.Imports {
				to, err := strconv.Unquote(imp.Path.Value)
				if err != nil {
					continue // the parser refused it already
				}
				out = append(out, edge{p.path, strings.TrimPrefix(to, module), f.test, f.name})
			}
		}
	}
	return out
}

// broken gives the imports that break a rule.
func broken(law []rule, es []edge) []string {
	var out []string
	for _, e := range es {
		for _, r := range law {
			switch {
			case e.test && !r.tests, !matchAny(r.who, e.from), matchAny(r.except, e.from), !matchAny(r.not, e.to):
			case strings.HasPrefix(e.to, e.from+"/") || e.from == e.to:
				// a command's own packages, and its tests
			default:
				out = append(out, fmt.Sprintf("%s/%s imports %s: not allowed, because %s", e.from, e.file, e.to, r.because))
			}
		}
	}
	return out
}

func TestImports(t *testing.T) {
	report(t, broken(importLaw, edges(repository(t))))
}

// TestImportLawHolds plants, for each rule and each of its patterns, an import that breaks it, in a test file too.
func TestImportLawHolds(t *testing.T) {
	concrete := func(pattern string) string {
		if pattern == "..." {
			return "planted"
		}
		return strings.Replace(pattern, "...", "planted", 1)
	}
	for _, r := range importLaw {
		if len(r.because) < 20 {
			t.Errorf("%s must not import %s: because of what?", r.who, r.not)
		}
		for _, who := range strings.Fields(r.who) {
			for _, not := range strings.Fields(r.not) {
				e := edge{from: concrete(who), to: concrete(not), file: "x.go"}
				if len(broken([]rule{r}, []edge{e})) != 1 {
					t.Errorf("%s may import %s", e.from, e.to)
				}
				e.test = true
				if got := len(broken([]rule{r}, []edge{e})) == 1; got != r.tests {
					t.Errorf("in a test, %s may import %s: %v", e.from, e.to, !got)
				}
				for _, except := range strings.Fields(r.except) {
					e := edge{from: concrete(except), to: concrete(not), file: "x.go"}
					if len(broken([]rule{r}, []edge{e})) != 0 {
						t.Errorf("%s may not import %s", e.from, e.to)
					}
				}
			}
		}
	}
}

// TestImportLawReadsFiles plants files, as they would be written.
func TestImportLawReadsFiles(t *testing.T) {
	f := func(path, name, imports string, want int) {
		t.Helper()
		p, err := parse(path, map[string]string{name: "package x\n" + imports})
		if err != nil {
			t.Fatal(err)
		}
		if got := broken(importLaw, edges([]pkg{p})); len(got) != want {
			t.Errorf("%s/%s with %s: %q, want %d", path, name, imports, got, want)
		}
	}
	f("gateway/query", "x.go", `import "`+module+`storage/head"`, 1)
	f("gateway/query", "x_test.go", `import "`+module+`storage/head"`, 1)
	f("cmd/spillway", "x.go", `import ("`+module+`storage/head"; "`+module+`gateway/query")`, 0)
	f("protocols/point", "x.go", `import "`+module+`protocols/fault"`, 0)
	f("protocols/point", "x.go", `import "`+module+`metadata/coord"`, 1)
	f("metadata/topology", "x.go", `import "sync/atomic"`, 1)
	f("metadata/topology", "x_test.go", `import "sync"`, 0)
	f("gateway/api", "x.go", `import web "github.com/prometheus/prometheus/web/api/v1"`, 1)
	f("gateway/api", "x.go", `import "github.com/prometheus/prometheus/storage"`, 0)
	f("gateway/api", "x.go", `import "github.com/prometheus/prometheus/storage/remote"`, 1)
	f("gateway/intake", "x.go", `import "github.com/valyala/fasthttp"`, 0)
	f("gateway/intake/kafka", "x.go", `import "github.com/valyala/fasthttp"`, 1)
}

// unlinked must not be in the product, by whatever way.
var unlinked = []struct{ not, because string }{
	{"github.com/prometheus/prometheus/web/...", "it brings every service discovery there is"},
	{"github.com/prometheus/prometheus/storage/remote/...", "it brings every cloud's way to sign requests"},
	{"github.com/prometheus/prometheus/discovery/...", "we are written to, we do not look for targets"},
	{"github.com/prometheus/prometheus/tsdb", "there is one database in this process, ours"},
	{"github.com/prometheus/prometheus/promql/promqltest", "it is a test"},
	{"go.etcd.io/etcd/server/...", "an etcd of its own is cmd/etcd, which only the demo and tests run"},
	{"github.com/aws/...", "we use no cloud"},
	{"github.com/Azure/...", "we use no cloud"},
	{"testing", "it registers flags of its own"},
	{"pgregory.net/rapid", "it is a test"},
}

func linked(paths []string) []string {
	var out []string
	for _, p := range paths {
		for _, u := range unlinked {
			if match(u.not, p) {
				out = append(out, fmt.Sprintf("%s is linked into cmd/spillway (go mod why %s): not allowed, because %s", p, p, u.because))
			}
		}
	}
	return out
}

func TestProductLinks(t *testing.T) {
	report(t, linked(inBinary(t)))
	for _, u := range unlinked {
		if len(linked([]string{strings.Replace(u.not, "...", "planted", 1)})) != 1 {
			t.Errorf("%s may be linked", u.not)
		}
	}
	if len(linked([]string{"fmt", "github.com/prometheus/prometheus/tsdb/chunkenc", "github.com/prometheus/prometheus/storage"})) != 0 {
		t.Error("what is in the product may not be")
	}
}

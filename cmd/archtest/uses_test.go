package archtest

import (
	"fmt"
	"go/ast"
	"strconv"
	"strings"
	"testing"
)

// use says which names of other packages must not be used in product code, and in which packages.
type use struct {
	who     string
	not     string // import path, then a dot and a name; a * at the end matches every name that begins so
	except  string
	because string
}

var useLaw = []use{
	{who: pure, not: "time.Now time.Since time.Until time.Sleep time.After time.NewTimer time.NewTicker time.AfterFunc time.Tick",
		because: "machines get the time as an argument"},
	{who: "...", not: "time.Sleep", except: "gateway/intake gateway/intake/kafka/kafkatest cmd/...",
		because: "a sleep ends neither at a stop nor when its context is cancelled; the pause after a failed accept is the known one"},
	{who: "...", not: "time.Tick", because: "its ticker cannot be stopped"},
	{who: "...", not: "fmt.Print* os.Exit os.Stdout os.Stderr os.Args", except: "cmd/... gateway/query/promqlsuite",
		because: "a package returns to its caller, and main writes for people"},
	{who: "...", not: "log/slog.Default log/slog.SetDefault log/slog.Debug* log/slog.Info* log/slog.Warn* log/slog.Error*", except: "",
		because: "loggers are handed in"},
	{who: "...", not: "github.com/prometheus/client_golang/prometheus.Default* github.com/prometheus/client_golang/prometheus.MustRegister github.com/prometheus/client_golang/prometheus.Register github.com/prometheus/client_golang/prometheus/promauto.New*",
		because: "registries are handed in, so that two servers fit into one process"},
	{who: "...", not: "net/http.DefaultServeMux net/http.Handle net/http.HandleFunc",
		because: "any import of net/http/pprof registers its pages in the default mux"},
	{who: "...", not: "net/http.DefaultClient net/http.Get net/http.Post net/http.Head net/http.PostForm", except: "cmd/loadgen cmd/clienttest/...",
		because: "the default client waits for ever"},
	{who: "...", not: "context.TODO", because: "a caller has the context that ends this work: pass it on"},
	{who: "...", not: "os.Setenv os.Chdir", because: "they change the whole process"},
	{who: "...", not: "runtime/debug.SetGCPercent runtime/debug.SetMaxThreads", except: "cmd/...",
		because: "they change the whole process"},
}

// names reports whether pattern matches the name of the package path.
func names(pattern, path, name string) bool {
	rest, ok := strings.CutPrefix(pattern, path+".")
	if !ok || strings.Contains(rest, "/") {
		return false
	}
	if begin, ok := strings.CutSuffix(rest, "*"); ok {
		return strings.HasPrefix(name, begin)
	}
	return rest == name
}

// misused gives the uses that break the law. Tests are free.
func misused(p pkg) []string {
	var out []string
	for _, f := range p.files {
		if f.test {
			continue
		}
		imports := map[string]string{} // by the name they have in the file
		for _, imp := range f.tree.Imports {
			to, _ := strconv.Unquote(imp.Path.Value)
			if imp.Name != nil {
				imports[imp.Name.Name] = to
			} else {
				imports[to[strings.LastIndexByte(to, '/')+1:]] = to
			}
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := s.X.(*ast.Ident)
			if !ok || x.Obj != nil { // a variable of that name
				return true
			}
			path := imports[x.Name]
			if path == "" {
				return true
			}
			for _, u := range useLaw {
				if !matchAny(u.who, p.path) || matchAny(u.except, p.path) {
					continue
				}
				for _, not := range strings.Fields(u.not) {
					if names(not, path, s.Sel.Name) {
						out = append(out, fmt.Sprintf("%s uses %s.%s: not allowed, because %s", p.fset.Position(s.Pos()), path, s.Sel.Name, u.because))
					}
				}
			}
			return true
		})
	}
	return out
}

func TestUses(t *testing.T) {
	var all []string
	for _, p := range repository(t) {
		all = append(all, misused(p)...)
	}
	report(t, all)
}

func TestUseLawHolds(t *testing.T) {
	f := func(path, name, imports, body string, want int) {
		t.Helper()
		p, err := parse(path, map[string]string{name: "package x\nimport " + imports + "\nfunc f() { " + body + " }\n"})
		if err != nil {
			t.Fatal(err)
		}
		if got := misused(p); len(got) != want {
			t.Errorf("%s: %s: %q, want %d", path, body, got, want)
		}
	}
	f("storage/head", "x.go", `"time"`, `time.Sleep(1)`, 1)
	f("storage/head", "x_test.go", `"time"`, `time.Sleep(1)`, 0)
	f("storage/head", "x.go", `clock "time"`, `clock.Sleep(1)`, 1)
	f("storage/head", "x.go", `"time"`, `var time sleeper; time.Sleep(1)`, 0)
	f("storage/head", "x.go", `"log/slog"`, `slog.InfoContext(ctx, "")`, 1)
	f("storage/head", "x.go", `"log/slog"`, `slog.New(h)`, 0)
	f("storage/chain", "x.go", `"time"`, `_ = time.Now()`, 1)
	f("storage/head", "x.go", `"time"`, `_ = time.Now()`, 0)
	f("storage/head", "x.go", `"github.com/prometheus/client_golang/prometheus"`, `prometheus.MustRegister(c)`, 1)
	f("storage/head", "x.go", `"github.com/prometheus/client_golang/prometheus"`, `reg.MustRegister(c)`, 0)
	for _, u := range useLaw { // every line can be broken
		for _, not := range strings.Fields(u.not) {
			dot := strings.LastIndexByte(not, '.')
			path, name := not[:dot], strings.TrimSuffix(not[dot+1:], "*")
			if !names(not, path, name) || names(not, path, "x"+name) || names(not, "x"+path, name) {
				t.Errorf("%s does not take itself alone", not)
			}
		}
		if len(u.because) < 20 {
			t.Errorf("not %s: because of what?", u.not)
		}
	}
}

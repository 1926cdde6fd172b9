package main

import (
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
)

// scripts finds the command lines in a page's blocks of the language sh, without comments, continued lines joined.
func scripts(t *testing.T, page string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	inside, begun := false, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inside = strings.TrimSpace(line) == "```sh"
			continue
		}
		if !inside {
			continue
		}
		if head, ok := strings.CutSuffix(line, `\`); ok {
			begun += strings.TrimSpace(head) + " "
			continue
		}
		line = begun + strings.TrimSpace(line)
		begun = ""
		if i := comment.FindStringIndex(line); i != nil {
			line = line[:i[0]]
		}
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}

var comment = regexp.MustCompile(`(^|\s)# `)

// notRun are the lines of the README that no test runs as they stand, each with what it needs, or with the tests that run
// its commands. All others are run, in their order, before a real process.
var notRun = map[string]string{
	"docker/secrets.sh": "writes into the repository; TestSecretsOfComposeLetItsProgramsIn",
	"docker compose -f docker/compose.yaml up --build":                                                             "needs Docker",
	"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/protobuf":                                                            "for the environment of an SDK; cmd/clienttest runs one with it",
	"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://127.0.0.1:8428/v1/metrics":                                         "the same",
	"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=cumulative":                                                 "the same",
	"spillway standalone --kafka.brokers=k1:9092,k2:9092 --kafka.topics=telegraf,/metrics-.*/ --kafka.format=line": "needs Kafka: make test-kafka",
	"spillway kafka status": "the same",
	"spillway standalone --http.listen 0.0.0.0:8428 --web.config.file web.yml --tokens.file tokens.yml":               "listens on every address; access_process_test.go",
	`curl --cacert tls.crt -u any:$TOKEN 'https://localhost:8428/write?db=hosts' --data-binary 'cpu,host=a usage=42'`: "the same",
	"spillway standalone --data-dir /var/lib/spillway --http.listen 0.0.0.0:8428 --retention 1y":                      "needs root",
	"make cluster": "runs until ctrl-C; make test-browser runs cmd/cluster",
	"spillway storage --id s1 --zone z1 --data-dir /var/lib/spillway --peer.listen 0.0.0.0:8430 --coord etcds://e1:2379,e2:2379,e3:2379 --peer.tls.ca ca.crt --peer.tls.cert s1.crt --peer.tls.key s1.key": "machines of a cluster: make test-cluster",
	"spillway gateway --http.listen 0.0.0.0:8428 --coord etcds://e1:2379,e2:2379,e3:2379 --peer.tls.ca ca.crt --peer.tls.cert g1.crt --peer.tls.key g1.key":                                                "the same",
	"spillway table create metrics --retention 30d --partition-width 1h --replicas 3":                                                                                                                      "a cluster's commands: cluster_*_test.go, admin_test.go",
	"spillway partition list metrics":                                   "the same",
	"spillway server drain s1 --reason disk":                            "the same",
	"spillway partition merge metrics p7 p8 p9 --reason narrow":         "TestAdmin",
	"spillway partition move metrics p7 --from s2 --to s4 --reason hot": "TestClusterAPartitionMovesToTheServerNamed",
	`spillway partition force-join metrics p7 s2 --reason "fire"`:       "the same",
	`spillway partition restore metrics p7 --holds s1 --reason "…"`:     "the same",
	"spillway audit": "the same",
	`spillway table repair metrics --reason "restored"`: "the same",
}

// Lines that only set a variable of the shell are not run either.
var setsOnly = regexp.MustCompile(`^export SPILLWAY_\w+=`)

// TestEveryLineOfTheREADMERuns runs the lines of the README's blocks of commands, but for those of notRun. A new line is run
// from then on, or needs a reason not to be.
func TestEveryLineOfTheREADMERuns(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip(err)
	}
	admin, err := processes.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	p := newProcess(t)
	p.more = []string{"--admin.listen=" + admin}
	p.start()
	dir := t.TempDir()
	env := append(p.env, "SPILLWAY_URL=http://"+p.addr, "SPILLWAY_ADMIN_URL=http://"+admin, "PATH="+filepath.Dir(p.bin)+":"+os.Getenv("PATH"), "NO_PROXY=127.0.0.1")
	met, ran := map[string]bool{}, 0
	for _, line := range scripts(t, "../../README.md") {
		if notRun[line] != "" {
			met[line] = true
			continue
		}
		if setsOnly.MatchString(line) {
			continue
		}
		ran++
		c := exec.Command("bash", "-c", strings.ReplaceAll(line, "127.0.0.1:8428", p.addr))
		c.Dir, c.Env = dir, env
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("README.md: %s\n%v: %s", line, err, out)
		}
	}
	if ran < 6 {
		t.Errorf("only %d lines were run", ran)
	}
	for _, line := range slices.Sorted(maps.Keys(notRun)) {
		if !met[line] {
			t.Errorf("the README has no line %q any more: it is not to be left out either", line)
		}
	}
}

// Every command that a page shows is one that the program understands: no flag is misspelt, none is gone.
func TestEveryCommandThatAPageShowsIsUnderstood(t *testing.T) {
	noSettings(t)
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	runbooks, err := filepath.Glob("../../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	understood := 0
	for _, page := range append(append(pages, runbooks...), "../../README.md") {
		lines := scripts(t, page)
		for _, s := range consoles(t, page) {
			lines = append(lines, s.command)
		}
		for _, line := range lines {
			for _, args := range spillwayCalls(line) {
				understood++
				c := newCLI()
				k, err := kong.New(&c, kong.Name("spillway"), kong.Writers(io.Discard, io.Discard))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := parse(k, kong.HelpOptions{}, args); err != nil {
					t.Errorf("%s: %s\n%v", filepath.Base(page), line, err)
				}
			}
		}
	}
	if understood < 60 {
		t.Errorf("only %d commands were found", understood)
	}
}

// spillwayCalls are the arguments of each call of the program in a line of a shell.
func spillwayCalls(line string) (all [][]string) {
	var words []string
	flush := func() {
		for len(words) > 0 && strings.Contains(words[0], "=") && !strings.HasPrefix(words[0], "-") {
			words = words[1:] // VARIABLE=value
		}
		if len(words) > 0 && (words[0] == "spillway" || words[0] == "bin/spillway") {
			all = append(all, words[1:])
		}
		words = nil
	}
	word, quote, some := "", rune(0), false
	toFile := false // the next word is the file of a redirection
	end := func() {
		if some && !toFile {
			words = append(words, word)
		}
		toFile = toFile && !some
		word, some = "", false
	}
	for _, c := range line + "\n" {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word += string(c)
		case c == '\'' || c == '"':
			quote, some = c, true
		case c == ' ' || c == '\n':
			end()
		case c == '|' || c == ';' || c == '&' || c == '(' || c == ')':
			end()
			flush()
			toFile = false
		case c == '>' || c == '<':
			if some && strings.Trim(word, "0123456789") == "" {
				word, some = "", false // 2>
			}
			end()
			toFile = true
		default:
			word, some = word+string(c), true
		}
	}
	end()
	flush()
	return all
}

func TestSpillwayCalls(t *testing.T) {
	for line, want := range map[string]string{
		`spillway table list`:                        "[table list]",
		`A=b spillway query 'sum(x)' --table "a b"`:  "[query sum(x) --table a b]",
		`echo x | spillway write && spillway doctor`: "[write] [doctor]",
		`source <(spillway completion bash)`:         "[completion bash]",
		`spillway table list -o json >out 2>&1`:      "[table list -o json]",
		`curl http://x/spillway`:                     "",
	} {
		var got []string
		for _, args := range spillwayCalls(line) {
			got = append(got, "["+strings.Join(args, " ")+"]")
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %s", line, got, want)
		}
	}
}

//go:build clients

package clienttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// languages are those that client libraries are written in: what runs their program, which is in libraries/.
var languages = map[string]func(t *testing.T) []string{
	"python": func(t *testing.T) []string {
		return []string{filepath.Join(client(t, "python"), "bin", "python"), filepath.Join("libraries", "python", "client.py")}
	},
	"npm": func(t *testing.T) []string {
		dir := client(t, "npm")
		return []string{"node", filepath.Join(dir, "client.mjs")}
	},
}

// use runs the program of a language with a library, and returns its output. It fails the test when the library finds fault.
func use(t *testing.T, language, library string, s *spillway, start time.Time) []byte {
	t.Helper()
	command := append(languages[language](t), library, s.url, strconv.FormatInt(start.Unix(), 10))
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s by %s: %v\n%s", library, language, err, tail(said.String(), 4000))
	}
	return out
}

// The readings that the programs in libraries/ send.
const (
	libraryHosts = 3
	libraryTimes = 20
	libraryStep  = 10 * time.Second
	libraryOff   = 7 * time.Millisecond
)

// readings are the lines of those readings.
func readings(start time.Time) []line {
	var lines []line
	for n := range libraryTimes {
		for h := range libraryHosts {
			lines = append(lines, line{"fleet", []tag{{"host", fmt.Sprintf("h%d", h)}}, []field{
				float("load", float64(n)+float64(h)/4), integer("count", int64(n*1000-h)), boolean("on", (n+h)%3 > 0), text("note", fmt.Sprintf(`says "%d"`, n)),
			}, start.Add(time.Duration(n) * libraryStep).Add(libraryOff)})
		}
	}
	return lines
}

// libraryStart is a time of the first reading.
func libraryStart() time.Time { return time.Now().Add(-30 * time.Minute).Truncate(libraryStep) }

// everything asks for all samples of a table since a time.
func everything(t *testing.T, a api, start time.Time) rows {
	t.Helper()
	window := strconv.Itoa(int(time.Since(start).Seconds())+60) + "s"
	got, err := a.matrix("/api/v1/query", "query", `{__name__=~".+"}[`+window+`]`)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestClientLibrariesSendWhatTheyAreGiven compares every value and time that libraries of PyPI and npm send. odd: they also sent one bad row with
// a good one, which is kept.
func TestClientLibrariesSendWhatTheyAreGiven(t *testing.T) {
	for _, c := range []struct {
		language, library string
		odd               bool
	}{
		{"python", "influxdb", true},
		{"python", "influxdb-client", true},
		{"python", "influxdb-client-batch", true},
		{"python", "influxdb3-python", true},
		{"python", "influxdb3-python-v3", true},
		{"python", "prometheus-remote-writer", false},
		{"npm", "influx", false},
		{"npm", "influxdb-client", true},
		{"npm", "influxdb3-client", true},
		{"npm", "influxdb3-client-v3", true},
		{"npm", "prometheus-remote-write", false},
	} {
		t.Run(c.language+"/"+c.library, func(t *testing.T) {
			t.Parallel()
			s := startSpillway(t, "--enable-delete")
			start := libraryStart()
			use(t, c.language, c.library, s, start)
			lines := readings(start)
			if c.odd {
				lines = append(lines, line{"odd", []tag{{"host", "a"}}, []field{float("good", 1)}, start.Add(libraryOff)})
			}
			if err := differ(expected(lines, byInflux()), everything(t, s.of(c.library), start)); err != nil {
				t.Error(err)
			}
		})
	}
}

// shop is what the programs count: by OpenTelemetry with the labels of its resource, by Prometheus' libraries without. one is the bucket to 1 s as the
// format writes it.
func shop(of map[string]string, one string, more ...string) map[string]float64 {
	want := map[string]float64{}
	add := func(value float64, pairs ...string) {
		labels := map[string]string{}
		for name, v := range of {
			labels[name] = v
		}
		for i := 0; i < len(pairs); i += 2 {
			labels[pairs[i]] = pairs[i+1]
		}
		want[seriesKey(labels)] = value
	}
	add(5, "__name__", "jobs_total", "queue", "a b")
	add(-2, "__name__", "waiting")
	add(0, "__name__", "latency_seconds_bucket", "le", "0.1")
	add(1, "__name__", "latency_seconds_bucket", "le", one)
	add(1, "__name__", "latency_seconds_bucket", "le", "+Inf")
	add(1, "__name__", "latency_seconds_count")
	add(0.25, "__name__", "latency_seconds_sum")
	for _, name := range more {
		add(21.5, "__name__", name)
	}
	return want
}

// checkNow compares values without their times, which the libraries choose, as how often they send them.
func checkNow(t *testing.T, a api, want map[string]float64) {
	t.Helper()
	got, wanted := rows{}, rows{}
	for key, list := range everything(t, a, time.Now().Add(-time.Minute)) {
		for _, s := range list {
			if of := got[key]; len(of) == 0 || of[len(of)-1].value != s.value {
				got[key] = append(of, sample{0, s.value})
			}
		}
	}
	for key, v := range want {
		wanted[key] = []sample{{0, v}}
	}
	if err := differ(wanted, got); err != nil {
		t.Error(err)
	}
}

// TestOpenTelemetryLibrariesSendWhatTheyCount: as protobuf and JSON, packed and not.
func TestOpenTelemetryLibrariesSendWhatTheyCount(t *testing.T) {
	for _, c := range []struct{ language, library string }{{"python", "opentelemetry"}, {"npm", "opentelemetry-json"}, {"npm", "opentelemetry-protobuf"}} {
		t.Run(c.language+"/"+c.library, func(t *testing.T) {
			t.Parallel()
			s := startSpillway(t)
			use(t, c.language, c.library, s, libraryStart())
			checkNow(t, s.of(c.library), shop(map[string]string{"job": "shop", "instance": "one"}, "1", "room_temperature_celsius"))
		})
	}
}

// TestPagesOfPrometheusLibrariesAreWritten: `spillway write` accepts the pages that they expose to scrapers.
func TestPagesOfPrometheusLibrariesAreWritten(t *testing.T) {
	for _, c := range []struct{ language, library string }{{"python", "prometheus-client"}, {"npm", "prom-client"}} {
		t.Run(c.language+"/"+c.library, func(t *testing.T) {
			t.Parallel()
			s := startSpillway(t)
			page := use(t, c.language, c.library, s, libraryStart())
			cmd := exec.CommandContext(t.Context(), spillwayBinary, "write", "--format=openmetrics", "--url", s.url, "--table", "pages")
			cmd.Stdin, cmd.Env = bytes.NewReader(page), os.Environ()
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("spillway write: %v\n%s\n%s", err, said, page)
			}
			checkNow(t, s.of("pages"), shop(nil, "1.0"))
		})
	}
}

// TestQueryLibrariesReadWhatWasSent: the clients of Prometheus' API read the readings, raw and by steps.
func TestQueryLibrariesReadWhatWasSent(t *testing.T) {
	s := startSpillway(t)
	start := libraryStart()
	lines := readings(start)
	if got := s.send("POST", "/write?db=fleet", "", "", []byte(fileOf(lines))); got.status != 204 {
		t.Fatalf("write: %d %s", got.status, got.body)
	}
	want := rows{}
	for key, list := range expected(lines, byInflux()) {
		if strings.Contains(key, "fleet_load") {
			want[key] = list
		}
	}
	stepped := want.stepped(start.Add(10*time.Second), start.Add(200*time.Second), 10*time.Second, 5*time.Minute)
	for _, c := range []struct{ language, library string }{{"python", "prometheus-api-client"}, {"npm", "prometheus-query"}} {
		t.Run(c.language+"/"+c.library, func(t *testing.T) {
			t.Parallel()
			var got struct {
				Raw, Stepped []struct {
					Metric map[string]string
					Values []sample
				}
			}
			if out := use(t, c.language, c.library, s, start); json.Unmarshal(out, &got) != nil {
				t.Fatalf("no JSON: %s", out)
			}
			raw, steps := rows{}, rows{}
			for _, series := range got.Raw {
				raw[seriesKey(series.Metric)] = series.Values
			}
			for _, series := range got.Stepped {
				steps[seriesKey(series.Metric)] = series.Values
			}
			if err := differ(stepped, steps); err != nil {
				t.Errorf("by steps: %v", err)
			}
			if c.language == "npm" { // prometheus-query has no raw range
				return
			}
			if err := differ(want, raw); err != nil {
				t.Errorf("raw: %v", err)
			}
		})
	}
}

//go:build clients

package clienttest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// output is one way in which Telegraf can send to Spillway.
type output struct {
	name   string
	config string // %s is Spillway's URL
	server []string
	by     naming
	table  string
}

func outputs() []output {
	return []output{
		{
			name: "influxdb", by: byInflux(), table: "telegraf",
			config: "[[outputs.influxdb]]\n  urls = [\"%s\"]\n  database = \"telegraf\"\n",
			server: []string{"--no-create-on-write"}, // the database is there only if Telegraf creates it
		}, {
			name: "influxdb_v2", by: byInflux(), table: "metrics",
			config: "[[outputs.influxdb_v2]]\n  urls = [\"%s\"]\n  token = \"any\"\n  organization = \"ours\"\n  bucket = \"metrics\"\n",
		}, {
			name: "remote_write", by: byTelegraf(), table: "default",
			config: `[[outputs.http]]
  url = "%s/api/v1/write"
  data_format = "prometheusremotewrite"
  fieldexclude = ["note", "log", "said"] # strings are no samples, and it would warn of each
  non_retryable_statuscodes = [400, 413] # a refusal is final; without this line Telegraf sends the batch for ever
  [outputs.http.headers]
    Content-Type = "application/x-protobuf"
    Content-Encoding = "snappy"
    X-Prometheus-Remote-Write-Version = "0.1.0"
`,
		},
	}
}

// telegrafConfig writes a configuration: the agent's part, the input, the output.
func telegrafConfig(t *testing.T, s *spillway, o output, input, file string, more string) string {
	t.Helper()
	agent := fmt.Sprintf(`[agent]
  interval = "1s"
  flush_interval = "1s"
  precision = "1ns"
  omit_hostname = true
  skip_processors_after_aggregators = true
  metric_batch_size = %d
  metric_buffer_limit = 100000
`, perTime)
	in := fmt.Sprintf("[[inputs.%s]]\n  files = [%q]\n  data_format = \"influx\"\n%s", input, file, more)
	return write(t, "telegraf.conf", agent+in+fmt.Sprintf(o.config, s.url))
}

// complaints are Telegraf's errors and warnings, but the one that a flush needs more than its second: the machine may have other work.
func complaints(p *process) []string {
	return slices.DeleteFunc(p.lines(" E! ", " W! "), func(line string) bool {
		return strings.Contains(line, "did not complete within its flush interval")
	})
}

// TestTelegrafSendsWhatItRead compares every value and every time of a file with the query's answer.
func TestTelegrafSendsWhatItRead(t *testing.T) {
	for _, o := range outputs() {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			binary := client(t, "telegraf")
			s := startSpillway(t, o.server...)
			start := time.Now().Add(-30 * time.Minute).Truncate(fleetStep)
			lines := append(fleet(start), speech(start.Add(fleetOff))...)
			conf := telegrafConfig(t, s, o, "file", write(t, "fleet.lp", fileOf(lines)), "")
			p := run(t, "telegraf", binary, "--strict-env-handling", "--config", conf, "--once")
			if err := p.wait(2 * time.Minute); err != nil {
				t.Fatalf("telegraf: %v", err)
			}
			if bad := complaints(p); len(bad) > 0 {
				t.Errorf("Telegraf complains:\n%s", strings.Join(bad, "\n"))
			}
			checkFleet(t, s.of(o.table), start, expected(lines, o.by))
			s.now.stop()
			s.start()
			checkFleet(t, s.of(o.table), start, expected(lines, o.by))
		})
	}
}

// checkFleet reads the rows back in three ways.
func checkFleet(t *testing.T, a api, start time.Time, want rows) {
	t.Helper()
	end := start.Add(fleetTimes * fleetStep)
	if got, err := a.matrix("/api/v1/query", "query", `{__name__=~".+"}[10m]`, "time", seconds(end)); err != nil {
		t.Error(err)
	} else if err := differ(want, got); err != nil {
		t.Errorf("range vector: %v", err)
	}
	until := end.Add(6 * time.Minute) // beyond the lookback
	got, err := a.matrix("/api/v1/query_range", "query", `{__name__=~".+"}`, "start", seconds(start), "end", seconds(until), "step", "5s")
	if err != nil {
		t.Error(err)
	} else if err := differ(want.stepped(start, until, 5*time.Second, 5*time.Minute), got); err != nil {
		t.Errorf("query_range: %v", err)
	}
	checkSeries(t, a, start, end, want)
}

// TestTelegrafLosesNothingOverRestarts stops and kills Spillway while Telegraf follows a file that grows.
func TestTelegrafLosesNothingOverRestarts(t *testing.T) {
	for _, o := range outputs() {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			binary := client(t, "telegraf")
			s := startSpillway(t, o.server...)
			start := time.Now().Add(-30 * time.Minute).Truncate(fleetStep)
			lines := fleet(start)
			file := growing{t: t, name: filepath.Join(t.TempDir(), "log.lp"), lines: lines}
			part := fleetTimes / 6 * perTime
			file.grow(part)
			o.config = oneByOne(o)
			p := run(t, "telegraf", binary, "--strict-env-handling", "--config", telegrafConfig(t, s, o, "tail", file.name, tailOptions))
			a := s.of(o.table)
			a.waitFor(1)
			file.grow(part)
			s.now.stop()
			file.grow(part)
			s.start()
			file.grow(part)
			a.waitFor(2*fleetTimes/6 + 1) // lines written while Spillway was down arrive now
			file.grow(part)
			s.now.kill()
			file.grow(part)
			s.start()
			want := expected(lines, o.by)
			end := start.Add(fleetTimes * fleetStep)
			eventually(t, 2*time.Minute, func() error {
				got, err := a.matrix("/api/v1/query", "query", `{__name__=~".+"}[10m]`, "time", seconds(end))
				if err != nil {
					return err
				}
				return differ(want, got)
			})
			p.stop()
			if bad := p.lines("dropped", "overflow", "Metrics are lost"); len(bad) > 0 {
				t.Errorf("Telegraf lost something:\n%s", strings.Join(bad, "\n"))
			}
		})
	}
}

// tailOptions lets Telegraf read all of a file that grows, and add no tag with its name.
const tailOptions = `  initial_read_offset = "beginning"
  watch_method = "poll"
  max_undelivered_lines = 10000
  path_tag = ""
`

// oneByOne makes a remote-write output send each metric by itself: of several times of one series in a request Telegraf
// keeps the newest only, and here batches are cut wherever a flush finds them.
func oneByOne(o output) string {
	return strings.Replace(o.config, "  data_format", "  use_batch_format = false\n  data_format", 1)
}

// growing is a file that lines are appended to.
type growing struct {
	t     *testing.T
	name  string
	lines []line // not yet written
}

func (g *growing) grow(n int) {
	g.t.Helper()
	f, err := os.OpenFile(g.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		g.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(fileOf(g.lines[:n])); err != nil {
		g.t.Fatal(err)
	}
	g.lines = g.lines[n:]
}

// waitFor waits until a series of the fleet has at least n samples.
func (a api) waitFor(n int) {
	a.t.Helper()
	eventually(a.t, time.Minute, func() error {
		got, err := a.matrix("/api/v1/query", "query", `limits_min[1h]`)
		if err != nil {
			return err
		}
		for _, list := range got {
			if len(list) >= n {
				return nil
			}
		}
		return fmt.Errorf("%s does not have %d samples of one series yet", a.name, n)
	})
}

// TestTelegrafGoesOnAfterBadPoints: points that can never be stored are lost themselves, but not those after them.
func TestTelegrafGoesOnAfterBadPoints(t *testing.T) {
	for _, o := range outputs() {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			binary := client(t, "telegraf")
			s := startSpillway(t, o.server...)
			start := time.Now().Add(-30 * time.Minute).Truncate(fleetStep)
			lines := fleet(start)
			good := lines[:2*perTime]
			bad := fleet(time.Now().Add(24 * time.Hour))[:perTime/2]
			first := append(append([]line{}, good[:perTime/2]...), bad...) // within one batch
			file := growing{t: t, name: filepath.Join(t.TempDir(), "log.lp"), lines: append(first, good[perTime/2:]...)}
			file.grow(perTime)
			o.config = oneByOne(o)
			p := run(t, "telegraf", binary, "--strict-env-handling", "--config", telegrafConfig(t, s, o, "tail", file.name, tailOptions))
			eventually(t, time.Minute, func() error {
				if s.metric("spillway_intake_rows_refused_total") == 0 {
					return fmt.Errorf("nothing was refused yet")
				}
				return nil
			})
			file.grow(len(file.lines))
			want := expected(good, o.by)
			a := s.of(o.table)
			eventually(t, time.Minute, func() error {
				got, err := a.matrix("/api/v1/query", "query", `{__name__=~".+"}[3d]`, "time", seconds(start.Add(48*time.Hour)))
				if err != nil {
					return err
				}
				return differ(want, got)
			})
			once := s.metric("spillway_intake_rows_refused_total")
			time.Sleep(5 * time.Second) // five flushes in which it could come again
			if again := s.metric("spillway_intake_rows_refused_total"); again != once {
				t.Errorf("refused points come again: %v, then %v", once, again)
			}
			p.stop()
		})
	}
}

//go:build kafka

package standalonetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/intake/kafka"
	"github.com/spillwaydb/spillway/gateway/intake/kafka/kafkatest"
)

const (
	kafkaUser     = "spill"
	kafkaPassword = "over the wall"
	kafkaPatience = processtest.Patience
)

// TestRealKafkaGuarded: brokers that authenticate their clients. Valid credentials let the rows in; wrong ones are
// reported in the status and the log, and tried again until they are valid.
func TestRealKafkaGuarded(t *testing.T) {
	b, doors := kafkatest.RealGuarded(t, kafkaLibs(t), kafkaUser, kafkaPassword)
	b.Create(kafkaPartitions, "metrics")
	const rows = 100
	now := time.Now()
	for i := range rows {
		b.Produce("metrics", fmt.Sprintf("m v=%d %d", i, now.Add(time.Duration(i-rows)*time.Millisecond).UnixNano()))
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	g := guarded{t: t, bin: processtest.New(t).Bin, at: now, rows: rows}
	password := fmt.Sprintf("username: %s, password: %q", kafkaUser, kafkaPassword)
	tls := fmt.Sprintf("tls: {enabled: true, ca_file: %q}", doors.CA)
	for _, mechanism := range []string{"plain", "scram-sha-256", "scram-sha-512"} {
		sasl := fmt.Sprintf("sasl: {mechanism: %s, %s}", mechanism, password)
		t.Run(mechanism, func(t *testing.T) { g.in(t).opens(doors.SASL, sasl) })
		t.Run(mechanism+" over TLS", func(t *testing.T) { g.in(t).opens(doors.SASLTLS, sasl+", "+tls) })
	}
	t.Run("certificate", func(t *testing.T) {
		g.in(t).opens(doors.MutualTLS, fmt.Sprintf("tls: {enabled: true, ca_file: %q, cert_file: %q, key_file: %q}", doors.CA, doors.Cert, doors.Key))
	})

	for _, mechanism := range []string{"plain", "scram-sha-512"} {
		t.Run(mechanism+" with a wrong password, then the right one", func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "password")
			write := func(text string) {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("wrong\n")
			sasl := fmt.Sprintf("sasl: {mechanism: %s, username: %s, password_file: %q}", mechanism, kafkaUser, file)
			g.in(t).opensAfter(doors.SASLTLS, sasl+", "+tls, "SASL_AUTHENTICATION_FAILED", func() { write(kafkaPassword + "\n") })
		})
	}
	sasl := fmt.Sprintf("sasl: {mechanism: plain, %s}", password)
	t.Run("nobody knows the broker's CA", func(t *testing.T) {
		g.in(t).staysOut(doors.SASLTLS, fmt.Sprintf("%s, tls: {enabled: true, ca_file: %q}", sasl, doors.OtherCA), "certificate signed by unknown authority")
	})
	t.Run("another name than the certificate's", func(t *testing.T) {
		g.in(t).staysOut(doors.SASLTLS, fmt.Sprintf("%s, tls: {enabled: true, ca_file: %q, server_name: kafka.example}", sasl, doors.CA), "certificate is not valid for")
	})
	t.Run("no certificate where one is asked for", func(t *testing.T) {
		g.in(t).staysOut(doors.MutualTLS, tls, "certificate")
	})
	t.Run("no TLS where it is spoken", func(t *testing.T) { g.in(t).staysOut(doors.SASLTLS, sasl, "TLS") })
	t.Run("a mechanism for nobody", func(t *testing.T) { g.in(t).staysOut(doors.SASL, "client_id: x", "SASL") })
}

// guarded is shared by the processes of TestRealKafkaGuarded.
type guarded struct {
	t    *testing.T
	bin  string
	at   time.Time
	rows int
}

// in is for a test that runs beside the others: most wait most of the time.
func (g guarded) in(t *testing.T) guarded {
	t.Parallel()
	g.t = t
	return g
}

// start starts a process in a new group; secrets are the settings of the cluster beyond its address.
func (g guarded) start(addr, secrets string) *processtest.Process {
	g.t.Helper()
	group := strings.NewReplacer("/", "-", " ", "-").Replace(g.t.Name())
	p := processtest.NewOf(g.t, g.bin, fmt.Sprintf(`SPILLWAY_KAFKA=[{brokers: [%q], group: %q, topics: [{name: metrics}], %s}]`, addr, group, secrets))
	p.Start()
	return p
}

// opens waits until a process has all rows.
func (g guarded) opens(addr, secrets string) {
	g.t.Helper()
	g.arrive(g.start(addr, secrets))
}

func (g guarded) arrive(p *processtest.Process) {
	g.t.Helper()
	n := 0
	for end := time.Now().Add(kafkaPatience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		n = len(p.Rows("m_v", "1h", g.at.Add(time.Minute))["m_v/"])
		if n == g.rows {
			g.leaves(p)
			return
		}
	}
	g.t.Fatalf("%d rows of %d; %+v", n, g.rows, g.status(p))
}

// leaves stops a process gracefully: one that waits for a broker must not hang.
func (g guarded) leaves(p *processtest.Process) {
	g.t.Helper()
	if code := p.Stop(); code != 0 {
		g.t.Errorf("exit code %d", code)
	}
	if text := p.Log.String(); strings.Contains(text, kafkaPassword) {
		g.t.Errorf("the log tells the password:\n%s", text)
	}
}

func (g guarded) status(p *processtest.Process) kafka.ClusterStatus {
	g.t.Helper()
	status, text, err := p.Get(kafka.StatusPath)
	var answer struct{ Data kafka.Status }
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err != nil || status != http.StatusOK || len(answer.Data.Clusters) != 1 {
		g.t.Fatalf("%d %s %v", status, text, err)
	}
	return answer.Data.Clusters[0]
}

// refused waits until the status reports twice, at different times, why no rows come.
func (g guarded) refused(p *processtest.Process, why string) {
	g.t.Helper()
	var first, last kafka.ClusterStatus
	for end := time.Now().Add(kafkaPatience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		last = g.status(p)
		if !strings.Contains(last.LastError, why) {
			continue
		}
		if first.LastError == "" {
			first = last
		} else if last.ErrorTime.After(first.ErrorTime) {
			if status, _, err := p.Get("/-/ready"); err != nil || status != http.StatusOK {
				g.t.Errorf("other doors are shut too: %d %v", status, err)
			}
			return
		}
	}
	g.t.Fatalf("status: %+v, want twice an error with %q", last, why)
}

// logged expects a line of the log that names the reason, but not hundreds.
func (g guarded) logged(p *processtest.Process, why string) {
	g.t.Helper()
	n := 0
	for line := range strings.Lines(p.Log.String()) {
		if strings.Contains(line, why) && (strings.Contains(line, "level=WARN") || strings.Contains(line, `"level":"WARN"`)) {
			if n++; n == 1 {
				g.t.Log(strings.TrimSpace(line))
			}
		}
	}
	if n == 0 || n > 40 {
		g.t.Errorf("%d warnings with %q in\n%s", n, why, &p.Log)
	}
}

func (g guarded) opensAfter(addr, secrets, why string, repair func()) {
	g.t.Helper()
	p := g.start(addr, secrets)
	g.refused(p, why)
	repair()
	g.arrive(p)
	g.logged(p, why)
}

func (g guarded) staysOut(addr, secrets, why string) {
	g.t.Helper()
	p := g.start(addr, secrets)
	g.refused(p, why)
	g.leaves(p)
	g.logged(p, why)
}

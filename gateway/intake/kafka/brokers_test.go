package kafka

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestAClusterThatNamesOtherBrokersAgainAndAgainFillsNothing: each address that could not be reached was kept, and had lines of the log.
func TestAClusterThatNamesOtherBrokersAgainAndAgainFillsNothing(t *testing.T) {
	var log bytes.Buffer
	c, err := New(Deps{Writer: newMemory(), Log: slog.New(slog.NewTextHandler(&log, nil))},
		Settings{Clusters: []Cluster{{Brokers: []string{"k1:9092"}, Topics: []Topic{{Name: "metrics"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	b := &brokers{m: c.members[0], failures: map[string]int{}}
	of := func(i int) kgo.BrokerMetadata { return kgo.BrokerMetadata{Host: fmt.Sprint("k", i), Port: 9092} }
	const n = 10 * failuresMost
	for i := range n {
		b.OnBrokerConnect(of(i), 0, nil, errors.New("refused"))
	}
	if kept, lines := len(b.failures), strings.Count(log.String(), "level=WARN"); kept > failuresMost+1 || lines > failuresMost+16 {
		t.Errorf("%d addresses are kept, and %d lines are in the log", kept, lines)
	}
	if s := c.Status().Clusters[0].LastError; !strings.Contains(s, fmt.Sprint("k", n-1)) {
		t.Errorf("the last error is %q", s)
	}
	for i := range n {
		b.OnBrokerE2E(of(i), kmsg.Metadata.Int16(), kgo.BrokerE2E{})
	}
	if len(b.failures) > 0 {
		t.Errorf("%d addresses that answer are kept", len(b.failures))
	}
}

func TestABrokerThatFailsIsSaidLessAndLessOften(t *testing.T) {
	var log bytes.Buffer
	c, err := New(Deps{Writer: newMemory(), Log: slog.New(slog.NewTextHandler(&log, nil))},
		Settings{Clusters: []Cluster{{Brokers: []string{"k1:9092"}, Topics: []Topic{{Name: "metrics"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	b := &brokers{m: c.members[0], failures: map[string]int{}}
	k1, k2 := kgo.BrokerMetadata{Host: "k1", Port: 9092}, kgo.BrokerMetadata{Host: "k2", Port: 9092}
	f := func(words string, lines int, lastError string) {
		t.Helper()
		if n := strings.Count(log.String(), words); n != lines {
			t.Errorf("%d lines with %q, want %d:\n%s", n, words, lines, &log)
		}
		if last := c.Status().Clusters[0].LastError; last != lastError {
			t.Errorf("last error %q, want %q", last, lastError)
		}
		log.Reset()
	}
	refused := errors.New("refused")
	for range 1000 {
		b.OnBrokerConnect(k1, 0, nil, refused)
		b.OnBrokerE2E(k1, kmsg.ApiVersions.Int16(), kgo.BrokerE2E{}) // the beginning of a connection is no answer yet
	}
	f("level=WARN", 10, "broker k1:9092: refused") // 1, 2, 4 … 512
	b.OnBrokerConnect(k2, 0, nil, fmt.Errorf("dial: %w", kerr.SaslAuthenticationFailed))
	f("the broker does not take this user with this password", 1,
		"broker k2:9092: dial: "+kerr.SaslAuthenticationFailed.Error()+"; the broker does not take this user with this password")
	b.OnBrokerE2E(k1, kmsg.Metadata.Int16(), kgo.BrokerE2E{ReadErr: io.EOF})
	f("level=WARN", 0, "broker k1:9092: EOF; a broker that hangs up at once may expect TLS or SASL, or not expect them")
	b.OnBrokerE2E(k1, kmsg.Metadata.Int16(), kgo.BrokerE2E{})
	f("a broker answers again", 1, "broker k1:9092: EOF; a broker that hangs up at once may expect TLS or SASL, or not expect them")
	for _, ours := range []error{context.Canceled, kgo.ErrClientClosed, net.ErrClosed} {
		b.OnBrokerConnect(k1, 0, nil, ours)
	}
	b.OnBrokerE2E(k1, kmsg.Metadata.Int16(), kgo.BrokerE2E{})
	f("level=", 0, "broker k1:9092: EOF; a broker that hangs up at once may expect TLS or SASL, or not expect them")
	if n := testutil.ToFloat64(c.metrics.brokerErrors.WithLabelValues("spillway")); n != 1002 {
		t.Errorf("%v failures are counted", n)
	}
	if hint(fmt.Errorf("unable to dial: %w", x509.UnknownAuthorityError{})) == "" {
		t.Error("no hint for an unknown authority")
	}
}

func TestAWrongPasswordIsSaidAndTriedUntilItIsRight(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "metrics"), kfake.EnableSASL(), kfake.Superuser("PLAIN", "spill", "way"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	w := &world{t: t, cluster: c}
	good := SASL{Mechanism: "plain", Username: "spill", Password: "way"}
	mech, err := good.mechanism()
	if err != nil {
		t.Fatal(err)
	}
	w.producer = w.client(kgo.SASL(mech))
	w.produce("metrics", 0, line("a", 1))
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("no way"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := newMemory()
	r := w.start(m, func(s *Settings) {
		s.Clusters[0].SASL = SASL{Mechanism: "plain", Username: "spill", PasswordFile: file}
	})
	// This broker hangs up; Apache Kafka reports the cause, which make test-kafka checks.
	eventually(t, "the reason in the status", func() (bool, any) {
		s := r.Status().Clusters[0]
		return strings.Contains(s.LastError, "may expect TLS or SASL") && time.Since(s.ErrorTime) < time.Minute && s.Member == "", s
	})
	if err := os.WriteFile(file, []byte("way\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.waitCommitted("g", map[string]int64{"metrics/0": 1})
}

package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// brokers watches the state of connections. The client retries for ever and reports nothing: without brokers a wrong
// password would look like an idle topic.
type brokers struct {
	m *member

	mu       sync.Mutex
	failures map[string]int // guarded by mu; since the last answer, by address; "": of all others
}

// failuresMost bounds the addresses whose failures are counted one by one: a cluster may name others again and again.
const failuresMost = 1024

// OnBrokerConnect implements kgo.HookBrokerConnect: err is of the network, of TLS or of SASL. That a connection stands is
// no answer yet.
func (b *brokers) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err != nil {
		b.failed(meta, err)
	}
}

// OnBrokerE2E implements kgo.HookBrokerE2E. Requests that belong to a connection's beginning are judged by OnBrokerConnect.
func (b *brokers) OnBrokerE2E(meta kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	switch kmsg.Key(key) {
	case kmsg.ApiVersions, kmsg.SASLHandshake, kmsg.SASLAuthenticate:
		return
	}
	if err := e2e.Err(); err != nil {
		b.failed(meta, err)
		return
	}
	b.answered(meta)
	switch kmsg.Key(key) {
	case kmsg.Heartbeat, kmsg.ConsumerGroupHeartbeat:
		b.m.stats.beat(time.Now())
	}
}

// failed logs the first failure, and then each time their number has doubled.
func (b *brokers) failed(meta kgo.BrokerMetadata, err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrClientClosed) || errors.Is(err, net.ErrClosed) && !errors.Is(err, errStill) {
		return // we ended it, and not for what the broker does
	}
	addr := addrOf(meta)
	b.mu.Lock()
	of := addr
	if _, known := b.failures[addr]; !known && len(b.failures) >= failuresMost {
		of = ""
	}
	b.failures[of]++
	n := b.failures[of]
	b.mu.Unlock()
	b.m.c.metrics.brokerErrors.WithLabelValues(b.m.cluster.Name).Inc()
	text := "broker " + addr + ": " + err.Error()
	why := hint(err)
	if why != "" {
		text += "; " + why
	}
	b.m.stats.failed(text)
	if n&(n-1) == 0 {
		b.m.log.Warn("a broker cannot be used; it is tried again", "broker", addr, "failures", n, "error", err, "hint", why)
	}
}

func (b *brokers) answered(meta kgo.BrokerMetadata) {
	addr := addrOf(meta)
	b.mu.Lock()
	n := b.failures[addr]
	delete(b.failures, addr)
	if len(b.failures) < failuresMost {
		delete(b.failures, "")
	}
	b.mu.Unlock()
	if n > 0 {
		b.m.log.Info("a broker answers again", "broker", addr, "failures", n)
	}
}

func addrOf(m kgo.BrokerMetadata) string { return net.JoinHostPort(m.Host, strconv.Itoa(int(m.Port))) }

// hint says which setting an operator may have to change; "" where only waiting helps.
func hint(err error) string {
	var (
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		invalid   x509.CertificateInvalidError
		header    tls.RecordHeaderError
		firstEOF  *kgo.ErrFirstReadEOF
	)
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return "the broker does not take this user with this password"
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		return "the broker does not take this sasl mechanism"
	case errors.As(err, &authority):
		return "tls ca_file does not hold the issuer of the broker's certificate"
	case errors.As(err, &name):
		return "tls server_name has to be a name of the broker's certificate"
	case errors.As(err, &invalid):
		return "the broker's certificate is not valid"
	case errors.As(err, &header):
		return "the broker does not speak TLS at this port"
	case strings.Contains(err.Error(), "tls alert record"):
		return "the broker speaks TLS at this port: tls enabled"
	case strings.Contains(err.Error(), "remote error: tls:"):
		return "the broker refuses us: it may ask for tls cert_file and key_file, or know another authority"
	case errors.As(err, &firstEOF), errors.Is(err, io.EOF):
		return "a broker that hangs up at once may expect TLS or SASL, or not expect them"
	}
	return ""
}

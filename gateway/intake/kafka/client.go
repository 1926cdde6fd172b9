package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// letterBytesMax is the largest record that we try to put aside whole. Brokers accept 1 MiB by default.
const letterBytesMax = 64 << 20

// answerRestMax bounds what else is in an answer than records, and answers of other kinds: of topics and partitions, mostly.
const answerRestMax = 16 << 20

// metadataAge bounds the time until the client finds a topic that was made later, or has more partitions now. The client's
// default of five minutes looks like topics that are not read.
const metadataAge = 20 * time.Second

// options are those of the client of a cluster, but for the callbacks of the group.
func (c *Cluster) options() ([]kgo.Opt, error) {
	start, err := startOf(c.Start)
	if err != nil {
		return nil, err
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(c.ClientID),
		kgo.SoftwareNameAndVersion("spillway", "1"),
		kgo.MetadataMaxAge(metadataAge),

		kgo.ConsumerGroup(c.Group),
		kgo.ConsumeStartOffset(start),
		kgo.DisableAutoCommit(),
		// Callbacks wait until the result of a poll is in the tracker. Otherwise records of an assignment that ended could
		// be mistaken for those of the next, and an offset be committed although the records before it were never read.
		kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(time.Duration(c.SessionTimeout)),
		kgo.HeartbeatInterval(min(3*time.Second, time.Duration(c.SessionTimeout)/3)),
		kgo.RebalanceTimeout(time.Duration(c.RebalanceTimeout)),

		kgo.FetchMaxBytes(c.FetchBytesMax),
		kgo.FetchMaxPartitionBytes(min(1<<20, c.FetchBytesMax)),
		kgo.FetchMaxWait(time.Second),
		// A broker exceeds the size that is asked for by one batch, if that is larger. Memory is allocated as soon as a length is announced.
		kgo.BrokerMaxReadBytes(int32(min(int64(c.FetchBytesMax)+int64(c.BatchBytesMax)+answerRestMax, math.MaxInt32))),

		// Dead letters. acks=all and idempotence are the client's defaults. Contexts bound them: RecordDeliveryTimeout
		// counts from a record's timestamp, and a letter keeps its record's timestamp.
		kgo.ProducerBatchMaxBytes(letterBytesMax),
		kgo.ProducerLinger(0),
		kgo.AllowAutoTopicCreation(),
	}
	if start == kgo.NewOffset().AtStart() {
		opts = append(opts, kgo.AdjustFetchOffsetsFn(fromZero))
	}
	if c.Protocol == "consumer" {
		opts = append(opts, kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer())
	} else {
		opts = append(opts, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	}
	if c.InstanceID != "" {
		opts = append(opts, kgo.InstanceID(c.InstanceID))
	}
	if c.Rack != "" {
		opts = append(opts, kgo.Rack(c.Rack))
	}
	mechanism, err := c.SASL.mechanism()
	if err != nil {
		return nil, err
	}
	if mechanism != nil {
		opts = append(opts, kgo.SASL(mechanism))
	}
	return append(opts, c.subscription()...), nil
}

// subscription names the topics. If one is a pattern, all must be.
func (c *Cluster) subscription() []kgo.Opt {
	var names []string
	patterns := false
	for _, t := range c.Topics {
		patterns = patterns || t.Regex != ""
	}
	for _, t := range c.Topics {
		switch {
		case t.Regex != "":
			names = append(names, "^(?:"+t.Regex+")$")
		case patterns:
			names = append(names, "^"+regexp.QuoteMeta(t.Name)+"$")
		default:
			names = append(names, t.Name)
		}
	}
	opts := []kgo.Opt{kgo.ConsumeTopics(names...)}
	if patterns {
		opts = append(opts, kgo.ConsumeRegex())
	}
	return opts
}

// The client can skip a batch (SetOffsets) only in a partition of which it has an offset, and the batch that is too large may be the first. So a partition
// without a commit gets a number to begin at (fromZero, fromEnd). A time is a number already: the client keeps its milliseconds as the offset.

// fromZero makes partitions without a commit begin at offset 0 instead of "the start". The result is the same: if 0 was deleted the client goes to the start.
func fromZero(_ context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	for _, parts := range offsets {
		for p, at := range parts {
			if at.EpochOffset().Offset < 0 {
				parts[p] = kgo.NewOffset().At(0)
			}
		}
	}
	return offsets, nil
}

// fromEnd makes partitions without a commit begin at the offset that is their end now, instead of at "the end". If the end is not known, the client asks for it
// again by itself.
func (m *member) fromEnd(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	for topic, parts := range offsets {
		of := kmsg.NewListOffsetsRequestTopic()
		of.Topic = topic
		for p, at := range parts {
			if at.EpochOffset().Offset < 0 {
				part := kmsg.NewListOffsetsRequestTopicPartition()
				part.Partition, part.Timestamp = p, -1
				of.Partitions = append(of.Partitions, part)
			}
		}
		if len(of.Partitions) > 0 {
			req.Topics = append(req.Topics, of)
		}
	}
	if len(req.Topics) == 0 {
		return offsets, nil
	}
	m.ends(ctx, m.fetching, req, func(topic string, p int32, end int64) {
		if at, asked := offsets[topic][p]; asked && at.EpochOffset().Offset < 0 {
			offsets[topic][p] = kgo.NewOffset().At(end)
		}
	})
	return offsets, ctx.Err()
}

func startOf(s string) (kgo.Offset, error) {
	switch strings.ToLower(s) {
	case "", "earliest", "start":
		return kgo.NewOffset().AtStart(), nil
	case "latest", "end":
		return kgo.NewOffset().AtEnd(), nil
	}
	if d, err := model.ParseDuration(s); err == nil {
		return kgo.NewOffset().AfterMilli(time.Now().Add(-time.Duration(d)).UnixMilli()), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return kgo.Offset{}, fmt.Errorf("start %q is none of earliest, latest, a duration, a time in RFC 3339", s)
	}
	return kgo.NewOffset().AfterMilli(t.UnixMilli()), nil
}

// mechanism is nil if none is configured. The password is read at every connection, so that it can be changed.
func (s *SASL) mechanism() (sasl.Mechanism, error) {
	switch m := strings.ToLower(s.Mechanism); m {
	case "":
		return nil, nil
	case "plain":
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			p, err := s.password()
			return plain.Auth{User: s.Username, Pass: p}, err
		}), nil
	case "scram-sha-256", "scram-sha-512":
		auth := func(context.Context) (scram.Auth, error) {
			p, err := s.password()
			return scram.Auth{User: s.Username, Pass: p}, err
		}
		if m == "scram-sha-256" {
			return scram.Sha256(auth), nil
		}
		return scram.Sha512(auth), nil
	}
	return nil, fmt.Errorf("sasl mechanism %q is none of plain, scram-sha-256, scram-sha-512", s.Mechanism)
}

func (t *TLS) config() (*tls.Config, error) {
	conf := &tls.Config{ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify, MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls ca_file: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls ca_file %s holds no certificate", t.CAFile)
		}
	}
	if t.CertFile != "" || t.KeyFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls cert_file and key_file: %w", err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return conf, nil
}

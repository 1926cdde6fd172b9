package kafka

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/spillwaydb/spillway/gateway/admit"
	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/record"
)

// Settings are those of all clusters together.
type Settings struct {
	Clusters []Cluster

	// InFlightBytesMax bounds the records of all clusters that wait or are being written. Default 64 MiB. Each topic gets
	// an equal share; at its share it is paused. One round of fetches may come on top: FetchBytesMax for each broker.
	InFlightBytesMax int64
	// WriteBytesMax is how many bytes of records go into one write. Default 1 MiB. Larger: fewer fsyncs, more to repeat.
	WriteBytesMax int64
	// WriteRowsMax is how many rows go into one write. Default 200,000.
	WriteRowsMax int
	// Workers decode and write at the same time, each other partitions. Default twice the processors, at least 4.
	Workers int

	// Admit are the limits that rows are held against; Record says how values are read.
	Admit  admit.Settings
	Record record.Settings
}

// Cluster is one consumer group on one Kafka cluster.
type Cluster struct {
	// Name is the label cluster of metrics. Default: the group's name.
	Name string `yaml:"name,omitempty"`
	// Brokers to begin with, host:port.
	Brokers []string `yaml:"brokers"`
	// Group is the consumer group's name. Default "spillway".
	Group string `yaml:"group,omitempty"`
	// Protocol of the group: "classic", or "consumer" for the protocol of KIP-848, which needs Kafka 4.0, better 4.3.
	// Default classic.
	Protocol string `yaml:"protocol,omitempty"`
	// ClientID is what brokers log. Default "spillway".
	ClientID string `yaml:"client_id,omitempty"`
	// InstanceID makes the member static: a quick restart does not rebalance. Must differ between gateways. Default none.
	InstanceID string `yaml:"instance_id,omitempty"`
	// Rack lets brokers of the same rack be read from.
	Rack string `yaml:"rack,omitempty"`
	// Start is where a partition without a committed offset begins: "earliest", "latest", a time back such as "6h", or a
	// time in RFC 3339. Default earliest.
	Start string `yaml:"start,omitempty"`

	SASL SASL `yaml:"sasl,omitempty"`
	TLS  TLS  `yaml:"tls,omitempty"`

	Topics     []Topic    `yaml:"topics"`
	DeadLetter DeadLetter `yaml:"dead_letter,omitempty"`

	// CommitInterval is how often offsets are committed. Default 1s. Longer: more is delivered again after a crash.
	CommitInterval model.Duration `yaml:"commit_interval,omitempty"`
	// RevokeWait is how long work under way may take when a partition moves or the process stops. Default 10s. Must be
	// well below RebalanceTimeout, or the group goes on without us.
	RevokeWait model.Duration `yaml:"revoke_wait,omitempty"`
	// WriteTimeMax is how long one write may take before it is tried again. Default 30s.
	WriteTimeMax model.Duration `yaml:"write_time_max,omitempty"`
	// RetryMax is the longest pause between two tries; pauses double from 100 ms on. Default 10s.
	RetryMax model.Duration `yaml:"retry_max,omitempty"`
	// SessionTimeout is how long the group waits for a silent member. Default 45s.
	SessionTimeout model.Duration `yaml:"session_timeout,omitempty"`
	// RebalanceTimeout is how long the group waits for members to let go of partitions. Default 60s.
	RebalanceTimeout model.Duration `yaml:"rebalance_timeout,omitempty"`
	// LagInterval is how often the ends of partitions are asked for. Default 10s.
	LagInterval model.Duration `yaml:"lag_interval,omitempty"`
	// FetchBytesMax bounds one answer of a broker, compressed. Default 8 MiB.
	FetchBytesMax int32 `yaml:"fetch_bytes_max,omitempty"`
	// BatchBytesMax bounds one batch of Kafka when decompressed. Default 64 MiB; a larger one is put aside unread.
	BatchBytesMax int `yaml:"batch_bytes_max,omitempty"`
}

// Topic is one topic, or all whose names match a pattern. The first that fits a name counts, exact names before patterns.
type Topic struct {
	Name  string `yaml:"name,omitempty"`
	Regex string `yaml:"regex,omitempty"` // of the whole name

	Format    record.Format    `yaml:"format,omitempty"`
	Table     string           `yaml:"table,omitempty"` // default "default"
	Precision record.Precision `yaml:"precision,omitempty"`
	Atomic    bool             `yaml:"atomic,omitempty"`
	Smear     record.Smear     `yaml:"smear,omitempty"`
	// Ack is the level at which rows are safe enough to commit: all (default), one, or received, which may lose rows.
	Ack string `yaml:"ack,omitempty"`

	level point.Level
	whole *regexp.Regexp
}

// DeadLetter is where records go that can never be written.
type DeadLetter struct {
	// Topic on the same cluster. Default none: the file is used.
	Topic string `yaml:"topic,omitempty"`
	// File gets a line of JSON for each. Default: beside the data.
	File string `yaml:"file,omitempty"`
	// FileBytesMax is where a file is put away as <file>.1, in place of the one before. Default 64 MiB, so 128 in all.
	FileBytesMax int64 `yaml:"file_bytes_max,omitempty"`
}

// SASL is how we say who we are.
type SASL struct {
	// Mechanism: "plain", "scram-sha-256" or "scram-sha-512"; "": none.
	Mechanism    string `yaml:"mechanism,omitempty"`
	Username     string `yaml:"username,omitempty"`
	Password     Secret `yaml:"password,omitempty"`
	PasswordFile string `yaml:"password_file,omitempty"` // wins, and is read at every connection
}

// TLS is how connections are encrypted.
type TLS struct {
	Enabled            bool   `yaml:"enabled,omitempty"`
	CAFile             string `yaml:"ca_file,omitempty"`
	CertFile           string `yaml:"cert_file,omitempty"`
	KeyFile            string `yaml:"key_file,omitempty"`
	ServerName         string `yaml:"server_name,omitempty"`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify,omitempty"`
}

// Secret is text that no log and no page shows.
type Secret string

// MarshalYAML hides it.
func (s Secret) MarshalYAML() (any, error) {
	if s == "" {
		return "", nil
	}
	return "<hidden>", nil
}

// String hides it.
func (s Secret) String() string { return "<hidden>" }

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (s *Settings) setDefaults() {
	orDefault(&s.InFlightBytesMax, 64<<20)
	orDefault(&s.WriteBytesMax, 1<<20)
	orDefault(&s.WriteRowsMax, 200_000)
	orDefault(&s.Workers, max(4, 2*runtime.GOMAXPROCS(0)))
	s.Admit.SetDefaults()
	s.Clusters = append([]Cluster(nil), s.Clusters...)
	for i := range s.Clusters {
		s.Clusters[i].setDefaults()
	}
}

func (c *Cluster) setDefaults() {
	orDefault(&c.Group, "spillway")
	orDefault(&c.Name, c.Group)
	orDefault(&c.Protocol, "classic")
	orDefault(&c.ClientID, "spillway")
	orDefault(&c.Start, "earliest")
	for _, d := range []struct {
		at  *model.Duration
		def time.Duration
	}{
		{&c.CommitInterval, time.Second}, {&c.RevokeWait, 10 * time.Second}, {&c.WriteTimeMax, 30 * time.Second},
		{&c.RetryMax, 10 * time.Second}, {&c.SessionTimeout, 45 * time.Second}, {&c.RebalanceTimeout, time.Minute},
		{&c.LagInterval, 10 * time.Second},
	} {
		orDefault(d.at, model.Duration(d.def))
	}
	orDefault(&c.FetchBytesMax, 8<<20)
	orDefault(&c.BatchBytesMax, 64<<20)
	orDefault(&c.DeadLetter.FileBytesMax, 64<<20)
	c.Topics = append([]Topic(nil), c.Topics...)
	for i := range c.Topics {
		orDefault(&c.Topics[i].Table, tablename.Default)
	}
}

// Validate reports every mistake at once. Zero values are none: they become defaults.
func (s Settings) Validate() error {
	s.setDefaults()
	return s.prepare()
}

// prepare checks, and works out what settings only say.
func (s *Settings) prepare() error {
	var errs []error
	if s.InFlightBytesMax < 0 || s.WriteBytesMax < 0 || s.WriteRowsMax < 0 || s.Workers < 0 {
		errs = append(errs, errors.New("a limit of kafka is negative"))
	}
	names := map[string]bool{}
	for i := range s.Clusters {
		c := &s.Clusters[i]
		if names[c.Name] {
			errs = append(errs, fmt.Errorf("two clusters are called %q: give them names", c.Name))
		}
		names[c.Name] = true
		for _, err := range c.check() {
			errs = append(errs, fmt.Errorf("kafka cluster %s: %w", c.Name, err))
		}
	}
	return fault.Wrap(errors.Join(append(errs, s.Admit.Validate(), s.Record.Validate())...), fault.Invalid, "kafka settings")
}

func (c *Cluster) check() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.Brokers) == 0 {
		bad("no brokers")
	}
	if len(c.Topics) == 0 {
		bad("no topics")
	}
	if c.Protocol != "classic" && c.Protocol != "consumer" {
		bad("protocol %q is neither classic nor consumer", c.Protocol)
	}
	if _, err := startOf(c.Start); err != nil {
		bad("%w", err)
	}
	if 2*c.RevokeWait > c.RebalanceTimeout {
		bad("revoke_wait %v is more than half of rebalance_timeout %v", c.RevokeWait, c.RebalanceTimeout)
	}
	if _, err := c.SASL.mechanism(); err != nil {
		bad("%w", err)
	}
	if c.TLS.Enabled {
		if _, err := c.TLS.config(); err != nil {
			bad("%w", err)
		}
	}
	for i := range c.Topics {
		if err := c.Topics[i].prepare(); err != nil {
			bad("topic %s%s: %w", c.Topics[i].Name, c.Topics[i].Regex, err)
		} else if dl := c.DeadLetter.Topic; dl != "" && c.Topics[i].fits(dl) {
			bad("topic %s%s includes the dead-letter topic %s, which would read what it writes", c.Topics[i].Name, c.Topics[i].Regex, dl)
		}
	}
	return errs
}

func (t *Topic) prepare() (err error) {
	if (t.Name == "") == (t.Regex == "") {
		return errors.New("exactly one of name and regex is needed")
	}
	if t.Regex != "" {
		if t.whole, err = regexp.Compile("^(?:" + t.Regex + ")$"); err != nil {
			return err
		}
	}
	switch strings.ToLower(t.Ack) {
	case "", "all":
		t.level = point.All
	case "one":
		t.level = point.One
	case "received":
		t.level = point.Received
	default:
		return fmt.Errorf("ack %q is none of all, one, received", t.Ack)
	}
	return tablename.Check(t.Table)
}

func (t *Topic) fits(topic string) bool {
	return t.Name == topic || t.whole != nil && t.whole.MatchString(topic)
}

func (t *Topic) options() record.Options {
	return record.Options{Format: t.Format, Table: t.Table, Precision: t.Precision, Atomic: t.Atomic, Smear: t.Smear}
}

// topic finds the settings of a topic: an exact name before a pattern.
func (c *Cluster) topic(name string) *Topic {
	for i := range c.Topics {
		if c.Topics[i].Name == name {
			return &c.Topics[i]
		}
	}
	for i := range c.Topics {
		if c.Topics[i].fits(name) {
			return &c.Topics[i]
		}
	}
	return nil
}

func (s *SASL) password() (string, error) {
	if s.PasswordFile == "" {
		return string(s.Password), nil
	}
	text, err := os.ReadFile(s.PasswordFile)
	return strings.TrimRight(string(text), "\r\n"), fault.Wrap(err, fault.Unavailable, "password_file")
}

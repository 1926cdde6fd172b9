package kafka

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"

	"github.com/prometheus/common/model"

	"github.com/spillwaydb/spillway/gateway/admit"
	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/record"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// Settings are those of all clusters together.
type Settings struct {
	Clusters []Cluster

	// InFlightBytesMax bounds the records of all clusters that wait or are being written. Default 64 MiB. Each topic gets
	// an equal share; at its share it is paused. It is less while the process has less memory (Deps.Memory). One round of fetches may come on top: FetchBytesMax for each broker.
	InFlightBytesMax int64
	// WriteBytesMax is how many bytes of records go into one write. Default 1 MiB. Larger: fewer fsyncs, more to repeat.
	WriteBytesMax int64
	// WriteRowsMax is how many rows go into one write. Default 200,000.
	WriteRowsMax int
	// Workers decode and write at the same time, each other partitions. Default twice the processors, at least 4.
	Workers int

	// Admit are the limits on rows; Record says how values are read.
	Admit  admit.Settings
	Record record.Settings
}

// Cluster is one consumer group on one Kafka cluster.
type Cluster struct {
	Name       string   `yaml:"name,omitempty" auto:"the group's name" help:"Label cluster of metrics."`
	Brokers    []string `yaml:"brokers" help:"Brokers to begin with, host:port."`
	Group      string   `yaml:"group,omitempty" default:"spillway" help:"Name of the consumer group."`
	Protocol   string   `yaml:"protocol,omitempty" default:"classic" one_of:"classic consumer" help:"Protocol of the group; consumer is that of KIP-848, which needs Kafka 4.0, better 4.3."`
	ClientID   string   `yaml:"client_id,omitempty" default:"spillway" help:"Name that brokers log."`
	InstanceID string   `yaml:"instance_id,omitempty" help:"Makes the member static: a quick restart does not rebalance. It must differ between gateways."`
	Rack       string   `yaml:"rack,omitempty" help:"Brokers of the same rack are read from where they may be."`
	Start      string   `yaml:"start,omitempty" default:"earliest" help:"Where a partition without a committed offset begins: earliest, latest, a time back such as 6h, or a time in RFC 3339."`

	SASL SASL `yaml:"sasl,omitempty"`
	TLS  TLS  `yaml:"tls,omitempty"`

	Topics     []Topic    `yaml:"topics" help:"Topics to read, a block each; the first that fits a name counts, exact names before patterns."`
	DeadLetter DeadLetter `yaml:"dead_letter,omitempty"`

	CommitInterval   model.Duration `yaml:"commit_interval,omitempty" default:"1s" help:"How often offsets are committed." price:"Longer: more is delivered again after a crash."`
	RevokeWait       model.Duration `yaml:"revoke_wait,omitempty" default:"10s" help:"How long work under way may take when a partition moves or the process stops; half of rebalance_timeout at most, or the group goes on without this member."`
	WriteTimeMax     model.Duration `yaml:"write_time_max,omitempty" default:"30s" help:"How long one write may take before it is tried again."`
	RetryMax         model.Duration `yaml:"retry_max,omitempty" default:"10s" help:"Longest pause between two tries; pauses double from 100 ms on."`
	SessionTimeout   model.Duration `yaml:"session_timeout,omitempty" default:"45s" help:"How long the group waits for a silent member."`
	RebalanceTimeout model.Duration `yaml:"rebalance_timeout,omitempty" default:"60s" help:"How long the group waits for members to release partitions."`
	LagInterval      model.Duration `yaml:"lag_interval,omitempty" default:"10s" help:"How often the ends of partitions are asked for."`
	FetchBytesMax    int32          `yaml:"fetch_bytes_max,omitempty" default:"8388608" help:"Bound of one answer of a broker, compressed, in bytes."`
	BatchBytesMax    int            `yaml:"batch_bytes_max,omitempty" default:"67108864" help:"Bound of one batch of Kafka when decompressed, in bytes; a larger one is put aside unread."`
}

// Topic is one topic, or all topics with names that match a pattern. The first match counts, exact names before patterns.
type Topic struct {
	Name  string `yaml:"name,omitempty" help:"Name of the topic."`
	Regex string `yaml:"regex,omitempty" help:"Instead of it: a regular expression of whole names."`

	Format    record.Format    `yaml:"format,omitempty" help:"What its messages hold: line, remote-write, telegraf-json, prometheus-json or otlp."`
	Table     string           `yaml:"table,omitempty" default:"default" help:"Table that its rows go to."`
	Precision record.Precision `yaml:"precision,omitempty" help:"Unit of times in lines and JSON: auto, ns, us, ms or s."`
	Atomic    bool             `yaml:"atomic,omitempty" help:"Refuse a message whole where one of its rows is refused."`
	Smear     record.Smear     `yaml:"smear,omitempty" help:"Whether its rows may be delayed to spread load."`
	Ack       string           `yaml:"ack,omitempty" one_of:"all one received" help:"Level at which rows are safe enough to commit the offset; all if it is not set. received may lose rows."`

	level point.Level
	whole *regexp.Regexp
}

// DeadLetter is the place for records that can never be written.
type DeadLetter struct {
	Topic        string `yaml:"topic,omitempty" help:"Topic on the same cluster. Without it the file is used."`
	File         string `yaml:"file,omitempty" auto:"beside the data" help:"File that gets a line of JSON for each record that can never be written."`
	FileBytesMax int64  `yaml:"file_bytes_max,omitempty" default:"67108864" help:"Size in bytes at which the file is renamed to <file>.1, in place of the one before."`
}

// SASL is the identity that this process presents to brokers.
type SASL struct {
	Mechanism    string `yaml:"mechanism,omitempty" one_of:"plain scram-sha-256 scram-sha-512" help:"Mechanism; none if it is not set."`
	Username     string `yaml:"username,omitempty" help:"User name."`
	Password     Secret `yaml:"password,omitempty" help:"Password; no log and no page shows it."`
	PasswordFile string `yaml:"password_file,omitempty" help:"File with the password; it wins, and is read at every connection."`
}

// TLS is how connections are encrypted.
type TLS struct {
	Enabled            bool   `yaml:"enabled,omitempty" help:"Encrypt connections."`
	CAFile             string `yaml:"ca_file,omitempty" help:"File with the authority that signed the brokers' certificates. Without it: those of the system."`
	CertFile           string `yaml:"cert_file,omitempty" help:"File with this client's certificate."`
	KeyFile            string `yaml:"key_file,omitempty" help:"File with its key."`
	ServerName         string `yaml:"server_name,omitempty" help:"Name in the brokers' certificates, when it is not that of their address."`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify,omitempty" help:"Do not look at the brokers' certificates."`
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

// SetDefaults gives fields that are zero their defaults.
func (s *Settings) SetDefaults() {
	orDefault(&s.InFlightBytesMax, 64<<20)
	orDefault(&s.WriteBytesMax, 1<<20)
	orDefault(&s.WriteRowsMax, 200_000)
	orDefault(&s.Workers, max(4, 2*runtime.GOMAXPROCS(0)))
	s.Admit.SetDefaults()
	orDefault(&s.Record.RowsMax, s.Admit.RowsMax)
	s.Clusters = append([]Cluster(nil), s.Clusters...)
	for i := range s.Clusters {
		s.Clusters[i].setDefaults()
	}
}

func (c *Cluster) setDefaults() {
	setting.Fill(c)
	orDefault(&c.Name, c.Group)
	c.Topics = append([]Topic(nil), c.Topics...)
	for i := range c.Topics {
		setting.Fill(&c.Topics[i])
	}
}

// Validate reports every mistake at once. Zero values are none: they become defaults.
func (s Settings) Validate() error {
	s.SetDefaults()
	return s.prepare()
}

// prepare checks the settings, and computes derived values.
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
		bad("no topics; name some, by --kafka.topics or topics: in the file")
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

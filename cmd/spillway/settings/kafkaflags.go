package settings

import (
	"path/filepath"
	"strings"

	"github.com/spillwaydb/spillway/cmd/spillway/verify"
	"github.com/spillwaydb/spillway/gateway/intake/kafka"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/record"
)

// KafkaFlags are the short form of one cluster in the section kafka: of the configuration.
type KafkaFlags struct {
	Brokers []string `name:"brokers" help:"Read topics of the cluster with these brokers, host:port."`
	Topics  []string `name:"topics" help:"Topics to read; /…/ is a regular expression of whole names."`
	Group   string   `name:"group" help:"Consumer group (default spillway)."`
	Format  string   `name:"format" help:"line, remote-write, telegraf-json, prometheus-json or otlp (default line)."`
}

// Add appends the cluster of the flags to those of the file.
func (f *KafkaFlags) Add(c *Config) error {
	if len(f.Brokers) == 0 {
		if len(f.Topics) > 0 || f.Group != "" || f.Format != "" {
			return fault.Errorf(fault.Invalid, "--kafka.topics, --kafka.group and --kafka.format need --kafka.brokers")
		}
		return nil
	}
	format, err := record.ParseFormat(f.Format)
	if err != nil {
		return fault.Annotate(err, "--kafka.format")
	}
	cluster := kafka.Cluster{Brokers: f.Brokers, Group: f.Group}
	for _, name := range f.Topics {
		t := kafka.Topic{Name: name, Format: format}
		if len(name) > 2 && name[0] == '/' && name[len(name)-1] == '/' {
			t.Name, t.Regex = "", name[1:len(name)-1]
		}
		cluster.Topics = append(cluster.Topics, t)
	}
	c.Kafka = append(c.Kafka, cluster)
	return nil
}

// ForKafka returns the settings for reading topics, from the sections kafka, intake, influx and otlp.
func (c *Config) ForKafka() kafka.Settings {
	in := c.ForIntake()
	s := kafka.Settings{
		Clusters:         append([]kafka.Cluster(nil), c.Kafka...),
		InFlightBytesMax: int64(c.Intake.KafkaInFlightBytesMax),
		Admit:            in.Admit,
		Record: record.Settings{
			Separator: in.Influx.Separator, DBLabel: in.Influx.DBLabel, Strings: in.Influx.Strings,
			OTLP: in.OTLP, DecodedBytesMax: int(in.DecodedBytesMax),
		},
	}
	for i := range s.Clusters {
		if dl := &s.Clusters[i].DeadLetter; dl.Topic == "" && dl.File == "" {
			name := s.Clusters[i].Name
			if name == "" {
				name = s.Clusters[i].Group
			}
			dl.File = filepath.Join(c.DataDir, verify.DeadLetters+strings.TrimRight("-"+filepath.Base("/"+name), "-/")+".jsonl")
		}
	}
	return s
}

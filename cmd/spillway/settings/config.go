package settings

import (
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/spillwaydb/spillway/cmd/spillway/connect"
	"github.com/spillwaydb/spillway/gateway/admit"
	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/ha"
	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/gateway/intake/kafka"
	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/relabel"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/otlp"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
	"github.com/spillwaydb/spillway/protocols/trace"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
	replicas "github.com/spillwaydb/spillway/storage/replica/runner"
	"github.com/spillwaydb/spillway/storage/server"
	unloads "github.com/spillwaydb/spillway/storage/unload/runner"
)

// Config are all settings of users, declared once: package setting derives flags, variables, checks and the reference
// for users. A YAML file, SPILLWAY_… variables and flags set them, each over the ones before. Unknown keys are
// refused: a mistyped limit must not go unnoticed.
type Config struct {
	File string `yaml:"-"` // the file they were read from; "": none
	role string // of the process; "": they are not for one
	// strangersMax bounds the connections to a storage server that have shown no certificate; set by descriptors. 0: the default of rpc.
	strangersMax int
	Build        api.Build              `yaml:"-"` // of the program; set by the flags of processes
	Again        func() (Config, error) `yaml:"-"` // reads and completes them again
	Level        *slog.LevelVar         `yaml:"-"` // in force; set by Complete

	// RetentionSet: tables.retention was set; its default is a value that may be set, too.
	RetentionSet bool `yaml:"-"`
	// Weights are the limits in force, of which a storage server uses the weights of tables; set by Complete.
	Weights *atomic.Pointer[limits.Settings] `yaml:"-"`

	DataDir   string `yaml:"data_dir" default:"./spillway-data" flag:"data-dir" help:"Directory in which everything is kept; of a gateway: copies of partition maps, with which it starts while the coordination store is away."`
	LogLevel  string `yaml:"log_level" default:"info" one_of:"debug info warn error" flag:"log.level" reload:"yes" help:"Least level of log lines."`
	LogFormat string `yaml:"log_format" default:"logfmt" one_of:"logfmt json" flag:"log.format" help:"Form of log lines."`

	HTTP    httpConfig    `yaml:"http" for:"standalone gateway"`
	Admin   adminConfig   `yaml:"admin"`
	Tables  tablesConfig  `yaml:"tables" for:"standalone gateway"`
	Intake  intakeConfig  `yaml:"intake"`
	Influx  influxConfig  `yaml:"influx" for:"standalone gateway"`
	OTLP    otlpConfig    `yaml:"otlp" for:"standalone gateway"`
	Traces  tracesConfig  `yaml:"traces"`
	Self    selfConfig    `yaml:"self"`
	Storage storageConfig `yaml:"storage" for:"standalone storage"`

	Limits  limits.Settings  `yaml:"limits" reload:"yes"`
	Relabel relabel.Settings `yaml:"relabel" for:"standalone gateway" reload:"yes"`
	HA      ha.Settings      `yaml:"ha" for:"standalone gateway" reload:"yes"`
	Kafka   []kafka.Cluster  `yaml:"kafka,omitempty" for:"standalone gateway" help:"Kafka clusters whose topics are read, a block each: README, Kafka."`

	Query query.Settings `yaml:"query" for:"standalone gateway"`
	API   api.Settings   `yaml:"api" for:"standalone gateway"`

	Coord  connect.Coord `yaml:"coord" for:"gateway storage"`
	Server serverConfig  `yaml:"server" for:"storage"`
	Peer   connect.Peer  `yaml:"peer" for:"gateway storage"`
}

// serverConfig names a storage server and its failure domains.
type serverConfig struct {
	ID   string `yaml:"id" auto:"the host's name" flag:"id" help:"Name of the server, for good: two servers never share one."`
	Host string `yaml:"host" auto:"the host's name" flag:"host" help:"What fails as one with this server: placements of a partition keep apart."`
	Zone string `yaml:"zone" flag:"zone" help:"A larger thing that fails as one: a rack, a data centre."`
}

type httpConfig struct {
	Listen          string       `yaml:"listen" default:"127.0.0.1:8428" flag:"http.listen" help:"Address of the one port for writes and queries."`
	WebConfigFile   string       `yaml:"web_config_file" flag:"web.config.file" reload:"file" help:"YAML file with TLS, users and headers, as of Prometheus and its exporters. Without it: plain HTTP for all clients."`
	TokensFile      string       `yaml:"tokens_file" flag:"tokens.file" reload:"file" help:"YAML file with the tokens that may come in, and for what: spillway token create."`
	ShutdownTimeout setting.Span `yaml:"shutdown_timeout" default:"30s" help:"How long requests under way may take after SIGTERM."`
}

type adminConfig struct {
	Listen string   `yaml:"listen" default:"127.0.0.1:8429" flag:"admin.listen" help:"Loopback address of pprof, reload and administration; of a storage server of metrics and health too. Empty: none."`
	Hosts  []string `yaml:"hosts,omitempty" help:"Names, besides localhost and addresses, by which it may be called."`
}

type tablesConfig struct {
	CreateOnWrite           bool           `yaml:"create_on_write" default:"true" flag:"create-on-write" help:"Make tables at the first write to them."`
	Retention               setting.Span   `yaml:"retention" default:"0" flag:"retention" help:"How long new tables keep rows: 30d, 10y; 0 for ever. Tables that exist keep theirs: spillway table set."`
	RetentionConfirmed      setting.Moment `yaml:"retention_confirmed" flag:"retention.confirmed" help:"Drop what retention holds back because the clock jumped, or because more than half of a table would go at once, while the clock is not later than this: 2026-12-31."`
	Replicas                int            `yaml:"replicas" default:"3" min:"1" max:"15" for:"gateway" flag:"replicas" help:"How many servers keep each row of new tables; as many as there are while the cluster has fewer." price:"More: each row is sent, written and fsynced as often."`
	PartitionWidth          setting.Span   `yaml:"partition_width" default:"1d" min:"1ms" flag:"partition-width" help:"Time that a partition of new tables covers."`
	SplitBytes              setting.Bytes  `yaml:"split_bytes" help:"Of storage servers: the size near which partitions should close: those to come are cut by the forecast of their growth, and one that grows too large is split. 0: neither." price:"Smaller: more partitions, each of which costs memory and, in queries, time."`
	BalanceBytes            setting.Bytes  `yaml:"balance_bytes" help:"Of storage servers: closed partitions move from the fullest server to the emptiest while their rows differ by more than this, and by a fifth of the mean. 0: they stay." price:"Smaller: servers are more even, and more is copied."`
	BalanceRows             int            `yaml:"balance_rows" min:"0" for:"storage" help:"Leads are handed from the server that accepts most rows a second to others that have the same copies, while it has more than 1.25 times the mean, and while the busier of two has at least this much less afterwards. Where that is not enough, one copy at a time of a busy partition moves to a less busy server. 0: they stay." price:"Smaller: servers are more even, and writers wait for new leaders more often."`
	DeadAfter               setting.Span   `yaml:"dead_after" min:"10s" for:"storage" help:"How long a storage server must be silent before the copies of rows that it has are made anew on others." price:"Less: rows have all their copies sooner, and a server that is only slow to restart costs a copy of all it has."`
	PresplitAhead           setting.Span   `yaml:"presplit_ahead" help:"Of storage servers: how far before their time partitions are cut by the forecast. 0: they are as wide as partition_width."`
	Max                     int            `yaml:"max" min:"1" help:"Bound of the number of tables that writes make."`
	MergeFrom               int            `yaml:"merge_from" min:"0" for:"storage" help:"From how many partitions of a table on closed neighbours with rows are merged, narrow ones into one an hour, and from five times as many on those into one a day. 0: they stay, as with storage.unload_bytes_per_second: 0." price:"Less: more rows are written again. More: queries over old times read more partitions."`
	NewPerSecond            int            `yaml:"new_per_second" min:"1" help:"Bound of the tables that writes make in a second, after a burst of 200." price:"More: one sender that invents names takes the disk from others."`
	NewPartitionsPerRequest int            `yaml:"new_partitions_per_request" min:"1" help:"Bound of the partitions that one request makes. What needs more is answered 503 or 429 and goes on each time it is sent again."`
	NewPartitionsPerSecond  int            `yaml:"new_partitions_per_second" min:"1" help:"Bound of the partitions that rows make in one table in a second."`
}

type intakeConfig struct {
	BodyBytesMax          setting.Bytes `yaml:"body_bytes_max" min:"1" for:"standalone gateway" help:"Bound of a body as it is sent. Beyond: 413."`
	DecodedBytesMax       setting.Bytes `yaml:"decoded_bytes_max" min:"1" for:"standalone gateway" help:"Bound of a body when it is unpacked. Beyond: 413."`
	InFlightBytesMax      setting.Bytes `yaml:"in_flight_bytes_max" auto:"1/16 of storage.memory_bytes, 96MiB to 1GiB" for:"standalone gateway" help:"Bound of bodies and batches of all requests together; it must hold one whole request. Beyond: 503 with Retry-After." price:"More: less memory for everything else."`
	KafkaInFlightBytesMax setting.Bytes `yaml:"kafka_in_flight_bytes_max" min:"1" for:"standalone gateway" help:"Bound of the records of all Kafka topics that wait or are being written."`
	ConnsMax              int           `yaml:"conns_max" auto:"half of what RLIMIT_NOFILE leaves, at most 16384" for:"standalone gateway" help:"Bound of open connections. Beyond: 503, closed."`
	Staging               bool          `yaml:"staging" default:"true" for:"gateway" help:"Rows whose leader is away for half a second are kept by other storage servers, which need storage.staging, and are acked and readable at once."`
	Smear                 bool          `yaml:"smear" default:"true" for:"gateway" help:"Rows of tables with a smearing window (spillway table set --smear) wait in staging on their way to narrow partitions. Without intake.staging they do not."`
	FutureMax             setting.Span  `yaml:"future_max" min:"1ms" for:"standalone gateway" help:"How far ahead of the clock a row may be. A clock before 2026 was never set, and bounds no row." price:"More: a sender with a wrong clock fills partitions that queries for now do not read."`
	RowsMax               int           `yaml:"rows_max" min:"1" for:"standalone gateway" help:"Bound of the rows of one request, of 20 bytes each on their way."`
	SeriesMax             int           `yaml:"series_max" auto:"half of storage.memory_bytes at 700 bytes each, of a storage server at 400, 50,000 to 20,000,000" help:"Bound of the series of all tables that are in memory, of each process by itself. Beyond: new ones of tables above their share are refused (400), with their names; a storage server refuses no rows that were accepted before, as copies and staged rows."`
	SeriesAge             setting.Span  `yaml:"series_age" min:"1ms" for:"standalone gateway" help:"How long a dictionary of series is used before another follows it with those that are still written to; where there are too many series, a twelfth of it." price:"More: series that ended take memory for longer."`
}

type influxConfig struct {
	Separator string `yaml:"separator" help:"What stands between measurement and field in a metric's name."`
	DBLabel   string `yaml:"db_label" help:"Label that every series gets with the database's name."`
	Strings   string `yaml:"strings" default:"count" one_of:"count info" help:"String fields are dropped and counted, or kept as labels of an …_info series."`
}

// otlpConfig uses the names of Prometheus's configuration where Prometheus has the setting.
type otlpConfig struct {
	TranslationStrategy               string   `yaml:"translation_strategy" one_of:"UnderscoreEscapingWithSuffixes UnderscoreEscapingWithoutSuffixes NoUTF8EscapingWithSuffixes NoTranslation" help:"How names become names of Prometheus."`
	PromoteResourceAttributes         []string `yaml:"promote_resource_attributes" help:"Resource attributes that become labels of every series."`
	PromoteAllResourceAttributes      bool     `yaml:"promote_all_resource_attributes" help:"All resource attributes become labels, but those of ignore_resource_attributes." price:"On: each restart of a sender makes new series."`
	IgnoreResourceAttributes          []string `yaml:"ignore_resource_attributes" help:"Resource attributes that do not become labels."`
	KeepIdentifyingResourceAttributes bool     `yaml:"keep_identifying_resource_attributes" help:"Keep service.* as labels of target_info."`
	PromoteScopeMetadata              bool     `yaml:"promote_scope_metadata" help:"Add labels otel_scope_…."`
	ConvertHistogramsToNHCB           bool     `yaml:"convert_histograms_to_nhcb" help:"Store explicit histograms as native histograms with custom buckets."`
	TargetInfo                        bool     `yaml:"target_info" default:"true" help:"Make the series target_info."`
	Delta                             string   `yaml:"delta" one_of:"refuse convert keep" help:"Delta temporality: refuse it, convert it to cumulative (summed in this process), or keep it as it is."`
}

// tracesConfig is about spans for OpenTelemetry.
type tracesConfig struct {
	Endpoint string `yaml:"endpoint" help:"Receiver of OpenTelemetry traces over HTTP, such as http://127.0.0.1:4318; without a path: /v1/traces. Spans of writes, queries and the calls between processes go there. None: there are none."`
	OneIn    int    `yaml:"one_in" default:"100" min:"1" help:"One request of so many begins a trace. One with the header traceparent follows its sender's choice." price:"A smaller number: more spans to make and to send."`
}

// selfConfig is about the process's own metrics in table scrape.Table.
type selfConfig struct {
	ScrapeInterval setting.Span `yaml:"scrape_interval" default:"15s" help:"How often the process writes its own metrics into table _spillway, for the page and Grafana. 0: never; otherwise 1s at least." price:"Shorter: more rows, some 500 to 1,500 at a time."`
	Retention      setting.Span `yaml:"retention" default:"7d" help:"How long that table keeps rows, set when it is made, by the first process that writes to it; 0 for ever. Later: spillway table set _spillway."`
}

type storageConfig struct {
	MemoryBytes          setting.Bytes `yaml:"memory_bytes" auto:"60% of the machine or control group" min:"320MiB" for:"standalone gateway storage" flag:"memory" help:"What the whole process may use. Other bounds follow from it unless they are set."`
	LogDir               string        `yaml:"log_dir" auto:"log in data_dir" help:"Directory of the common log. On a device of its own fsyncs do not wait behind flushes."`
	LogBytesMax          setting.Bytes `yaml:"log_bytes_max" min:"1" help:"How much log is kept before the partitions that pin the oldest files are flushed." price:"More: longer recovery."`
	NoSync               bool          `yaml:"no_sync" help:"Ack when the operating system has the bytes." price:"A power cut then loses acked rows."`
	SkipDamagedLog       bool          `yaml:"skip_damaged_log" help:"Accept the loss of damaged records of the log at the next start instead of refusing it. What was skipped is logged and remembered, so that this is needed once."`
	LostFoundKeep        setting.Span  `yaml:"lost_found_keep" help:"How long what a start put aside in lost+found is kept; 0: until a person removes it."`
	FreeBytesMin         setting.Bytes `yaml:"free_bytes_min" min:"1" help:"Writes are refused while less is free on a disk. A disk that is truly full costs a restart."`
	HeadBytesMax         setting.Bytes `yaml:"head_bytes_max" auto:"3/8 of storage.memory_bytes; with storage.staging less storage.staging_bytes_max" min:"1" help:"Bound of the rows that are not flushed yet, of all tables."`
	CacheBytes           setting.Bytes `yaml:"cache_bytes" auto:"1/16 of storage.memory_bytes, 16MiB to 256MiB" min:"1" help:"Bound of the cache of segment blocks."`
	OpenFilesMax         int           `yaml:"open_files_max" auto:"half of what RLIMIT_NOFILE leaves, at most 4096" help:"Bound of the segment files that are open at once." price:"Fewer: queries over more segments than that open files again."`
	FlushAge             setting.Span  `yaml:"flush_age" min:"1ms" help:"Age at which the rows of a partition are flushed."`
	FlushIdle            setting.Span  `yaml:"flush_idle" min:"1ms" help:"How long a partition was not written to before it is flushed; one of at most ten minutes whose time has passed, a thirtieth of it."`
	FlushBytes           setting.Bytes `yaml:"flush_bytes" min:"1" help:"Size at which the rows of a partition are flushed." price:"Less: more segments to merge."`
	MinorsMax            int           `yaml:"minors_max" min:"1" help:"How many minor segments a partition has before the newest are merged into one; below 32 MiB 8 at most." price:"More: less is written, and queries read more files."`
	SeriesQuietAfter     setting.Span  `yaml:"series_quiet_after" min:"1ms" help:"How long a series that is not written to stays in memory."`
	ScrubBytesPerSecond  setting.Bytes `yaml:"scrub_bytes_per_second" min:"1" help:"Rate at which all segments are read again to see that they are whole: 1 TiB in 36 hours. An eighth of it while the disk is busy."`
	ScrubPeriod          setting.Span  `yaml:"scrub_period" min:"1ms" help:"How often such a pass begins at most."`
	Copies               bool          `yaml:"copies" default:"true" for:"storage" help:"On every storage server or on none: rows of tables of several replicas are kept by all placements in sync before they are acked, instead of by their leader alone."`
	UnloadBytesPerSecond setting.Bytes `yaml:"unload_bytes_per_second" for:"storage" help:"Rate at which a server moves rows of partitions that were split or merged to the partitions that took over, all together, 24 bytes a row. 0: they stay where they are until retention, and are read beside the others." price:"Less: queries read parents beside their halves for longer. More: less of processor, disk and network is left for rows that come in."`
	CopyBytesPerSecond   setting.Bytes `yaml:"copy_bytes_per_second" for:"storage" min:"4096" help:"Most bytes of segments a second that a server sends to the other placements of its partitions, all together, and that it receives. It copies slower, down to an eighth, while that makes fsyncs of its log twice as long." price:"Less: an emptied server is refilled later. More: less of disk and network is left for rows."`
	Staging              bool          `yaml:"staging" default:"true" for:"storage" help:"On every storage server: keep rows for leaders that are away, for gateways with intake.staging."`
	StagingBytesMax      setting.Bytes `yaml:"staging_bytes_max" for:"storage" auto:"1/16 of storage.memory_bytes, 64MiB to 2GiB" min:"1MiB" help:"Bound of the rows that wait on this server for leaders that are away, or for their time, in memory; their log takes up to four times as much. Beyond: writes wait for the leader, then 503; rows that are smeared go to their leader at once." price:"More: less memory for everything else."`
	NoScrub              bool          `yaml:"no_scrub" help:"Leave that to others: spillway verify, or the file system."`
}

// LocalServer is the name of the only storage server of a standalone process.
const LocalServer topology.ServerID = "local"

// Default returns the settings without any of a user. Those that follow from the machine are not filled in yet.
func Default() Config { return setting.Defaults[Config]() }

// Load combines defaults, file and environment, in this order; flags go over it.
func Load(file string) (Config, error) {
	c := Default()
	if file != "" {
		c.File = file
		if err := c.Read(file); err != nil {
			return c, err
		}
	}
	_, c.RetentionSet = os.LookupEnv(setting.EnvironPrefix + "TABLES_RETENTION")
	if file != "" {
		c.RetentionSet = c.RetentionSet || keeps(file)
	}
	return c, setting.Environ(&c, os.Environ(), commandVariables)
}

// keeps reports whether a file, which was read without a mistake, sets tables.retention.
func keeps(file string) bool {
	var has struct {
		Tables struct{ Retention *setting.Span }
	}
	text, err := os.ReadFile(file)
	return err == nil && yaml.Unmarshal(text, &has) == nil && has.Tables.Retention != nil
}

// Complete fills in the settings that depend on the machine and checks everything.
func (c *Config) Complete() error {
	if err := setting.Check(c); err != nil {
		return err
	}
	if err := c.Budget(min(MemoryOfMachine(), addressRoom(addressLimit()))); err != nil {
		return err
	}
	if err := c.addresses(addressLimit()); err != nil {
		return err
	}
	if err := c.descriptors(fileLimit()); err != nil {
		return err
	}
	c.Level = new(slog.LevelVar)
	if err := c.Level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return fault.Wrap(err, fault.Invalid, "log_level")
	}
	c.Query.SetDefaults()
	c.API.SetDefaults()
	c.Limits.SetDefaults()
	now := c.Limits
	c.Weights = new(atomic.Pointer[limits.Settings])
	c.Weights.Store(&now)
	return c.validate()
}

// Read lays a YAML file over the configuration. Errors are Invalid and name the line.
func (c *Config) Read(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return fault.Wrap(err, fault.Invalid, "configuration file")
	}
	if err := setting.DecodeYAML(text, c); err != nil {
		return fault.Wrap(err, fault.Invalid, "configuration file %s", name)
	}
	return nil
}

// commandVariables are variables of commands for people, which may also be set in a shell that starts processes, and the
// variable of the file's name.
var commandVariables = []string{"SPILLWAY_SERVERS", "SPILLWAY_CONFIG_FILE", "SPILLWAY_URL", "SPILLWAY_ADMIN_URL", "SPILLWAY_TOKEN_FILE", "SPILLWAY_CA_FILE"}

// validate reports every mistake at once, except those that a part reports itself.
func (c *Config) validate() error {
	var errs []error
	errs = append(errs, c.NewTable().Validate(), fault.Annotate(c.OwnTable().Validate(), "self"), c.Query.Validate(), c.API.Validate(), c.Limits.Validate(), c.Relabel.Validate(), c.HA.Validate(),
		fault.Annotate(c.otlp().Validate(), "otlp"))
	errs = append(errs, c.ForTraces("", "").Validate())
	if every := time.Duration(c.Self.ScrapeInterval); every != 0 && every < selfIntervalMin {
		errs = append(errs, fault.Errorf(fault.Invalid, "self.scrape_interval is %s: choose 0, for never, or %s at least", every, selfIntervalMin))
	}
	if len(c.Kafka) > 0 {
		errs = append(errs, c.ForKafka().Validate())
	}
	return errors.Join(errs...)
}

// selfIntervalMin bounds how often the process scrapes itself: each time costs a few ms.
const selfIntervalMin = time.Second

// selfWidth is the time that a partition of the process's metrics covers: a day is a few MB.
const selfWidth = 24 * time.Hour

// OwnTable are the settings of the table of processes' metrics, when it is made.
func (c *Config) OwnTable() topology.Config {
	return topology.Config{Retention: time.Duration(c.Self.Retention), PartitionWidth: selfWidth}
}

// ForTraces are the settings of spans of a process.
func (c *Config) ForTraces(role, instance string) trace.Settings {
	return trace.Settings{Endpoint: c.Traces.Endpoint, OneIn: c.Traces.OneIn, Role: role, Instance: instance, Version: c.Build.Version}
}

// strings is valid after Complete.
func (c *Config) strings() lineproto.StringPolicy {
	if c.Influx.Strings == "info" {
		return lineproto.InfoSeries
	}
	return lineproto.CountStrings
}

func (c *Config) otlp() otlp.Settings {
	return otlp.Settings{
		Translation:                       otlp.Translation(c.OTLP.TranslationStrategy),
		PromoteResourceAttributes:         c.OTLP.PromoteResourceAttributes,
		PromoteAllResourceAttributes:      c.OTLP.PromoteAllResourceAttributes,
		IgnoreResourceAttributes:          c.OTLP.IgnoreResourceAttributes,
		KeepIdentifyingResourceAttributes: c.OTLP.KeepIdentifyingResourceAttributes,
		PromoteScopeMetadata:              c.OTLP.PromoteScopeMetadata,
		ConvertHistogramsToNHCB:           c.OTLP.ConvertHistogramsToNHCB,
		DisableTargetInfo:                 !c.OTLP.TargetInfo,
		Delta:                             otlp.DeltaPolicy(c.OTLP.Delta),
	}
}

// NewTable are the settings of a table that a write makes.
func (c *Config) NewTable() topology.Config {
	return topology.Config{Retention: time.Duration(c.Tables.Retention), PartitionWidth: time.Duration(c.Tables.PartitionWidth)}
}

// ForTables returns the settings of metadata/tables.
func (c *Config) ForTables() tables.Settings {
	return tables.Settings{New: c.NewTable(), CreateOnWrite: c.Tables.CreateOnWrite, TablesMax: c.Tables.Max, NewPerSecond: c.Tables.NewPerSecond}
}

// ForMaster returns the settings of a master, in which 0 stands for a default.
func (c *Config) ForMaster() master.Settings {
	t := c.Tables
	s := master.Settings{CopyRate: int64(c.Storage.CopyBytesPerSecond), RetentionConfirmed: point.Nanos(t.RetentionConfirmed), SplitBytes: int64(t.SplitBytes), BalanceBytes: int64(t.BalanceBytes), BalanceRows: int64(t.BalanceRows), MergeFrom: t.MergeFrom, PresplitAhead: time.Duration(t.PresplitAhead), DeadAfter: time.Duration(t.DeadAfter)}
	var standard master.Settings
	standard.SetDefaults()
	s.EmptyAfter = min(standard.EmptyAfter, s.DeadAfter) // partitions without rows never wait longer than those with rows
	if s.SplitBytes == 0 {
		s.SplitBytes = -1
	}
	if s.BalanceBytes == 0 {
		s.BalanceBytes = -1
	}
	if s.BalanceRows == 0 {
		s.BalanceRows = -1
	}
	if s.MergeFrom == 0 {
		s.MergeFrom = -1
	}
	if s.PresplitAhead == 0 {
		s.PresplitAhead = -1
	}
	return s
}

// ForBrick returns the settings of storage/brick.
func (c *Config) ForBrick() brick.Settings {
	keep := time.Duration(c.Storage.LostFoundKeep)
	if keep == 0 {
		keep = -1 // for ever
	}
	return brick.Settings{
		DataDir: c.DataDir, LogDir: c.Storage.LogDir, NoSync: c.Storage.NoSync,
		FreeBytesMin: uint64(c.Storage.FreeBytesMin), SkipDamagedLog: c.Storage.SkipDamagedLog, LostFoundKeep: keep,
	}
}

// ForServer returns the settings of storage/server, which are valid after Complete.
func (c *Config) ForServer() server.Settings {
	return server.Settings{
		HeadBytesMax: int64(c.Storage.HeadBytesMax), CacheBytes: int64(c.Storage.CacheBytes), OpenFilesMax: c.Storage.OpenFilesMax, LogBytesMax: int64(c.Storage.LogBytesMax),
		StreamSeriesMax:     c.Intake.SeriesMax,
		ScrubBytesPerSecond: int64(c.Storage.ScrubBytesPerSecond), ScrubPeriod: time.Duration(c.Storage.ScrubPeriod), NoScrub: c.Storage.NoScrub,
		Partition: partition.Settings{
			HeadBytesMax: int64(c.Storage.FlushBytes), FlushAge: time.Duration(c.Storage.FlushAge),
			FlushIdle: time.Duration(c.Storage.FlushIdle), MinorsMax: c.Storage.MinorsMax, QuietAfter: time.Duration(c.Storage.SeriesQuietAfter),
			CompactBytes: int(min(max(int64(c.Storage.MemoryBytes)/MemoryParts, compactLeast), compactMost)),
		},
	}
}

// ForReplicas returns the settings of storage/replica/runner.
func (c *Config) ForReplicas() replicas.Settings {
	return replicas.Settings{BytesPerSecond: int64(c.Storage.CopyBytesPerSecond)}
}

// ForUnloads returns the settings of storage/unload/runner, unless unload_bytes_per_second is 0: then nothing is unloaded.
func (c *Config) ForUnloads() unloads.Settings {
	return unloads.Settings{BytesPerSecond: int64(c.Storage.UnloadBytesPerSecond)}
}

// ForForward returns the settings of gateway/forward.
func (c *Config) ForForward() forward.Settings {
	return forward.Settings{
		Smear:               c.Intake.Smear,
		GenerationSeriesMax: c.Intake.SeriesMax, GenerationAge: time.Duration(c.Intake.SeriesAge),
		NewPartitionsPerWrite: c.Tables.NewPartitionsPerRequest, NewPartitionsPerSecond: c.Tables.NewPartitionsPerSecond,
	}
}

// ForIntake returns the settings of gateway/intake, which are valid after Complete.
func (c *Config) ForIntake() intake.Settings {
	return intake.Settings{
		BodyBytesMax: int64(c.Intake.BodyBytesMax), DecodedBytesMax: int64(c.Intake.DecodedBytesMax), InFlightBytesMax: int64(c.Intake.InFlightBytesMax),
		ConnsMax: c.Intake.ConnsMax,
		Admit:    admit.Settings{FutureMax: time.Duration(c.Intake.FutureMax), RowsMax: c.Intake.RowsMax},
		Influx:   intake.InfluxSettings{Separator: c.Influx.Separator, DBLabel: c.Influx.DBLabel, Strings: c.strings()},
		OTLP:     c.otlp(), SeriesMax: c.Intake.SeriesMax,
		Delete:  c.API.Admin,
		Version: c.Build.Version,
	}
}

// String is the configuration as YAML, as a file would hold it.
func (c *Config) String() string {
	text, err := yaml.Marshal(c)
	if err != nil {
		fault.Bug("the configuration does not encode: %v", err)
	}
	return string(text)
}

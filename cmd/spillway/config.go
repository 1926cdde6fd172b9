package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/spillwaydb/spillway/gateway/admit"
	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/gateway/intake/kafka"
	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/otlp"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/server"
)

// config is everything a user can set. A YAML file, SPILLWAY_… variables and flags set it, the later over the earlier.
// Unknown keys are refused: a mistyped limit must not go unnoticed.
type config struct {
	file       string // it was read from; "": none
	processors int    // there are, set by spread

	DataDir  string `yaml:"data_dir"`
	LogLevel string `yaml:"log_level"`

	HTTP    httpConfig    `yaml:"http"`
	Admin   adminConfig   `yaml:"admin"`
	Tables  tablesConfig  `yaml:"tables"`
	Intake  intakeConfig  `yaml:"intake"`
	Influx  influxConfig  `yaml:"influx"`
	OTLP    otlpConfig    `yaml:"otlp"`
	Storage storageConfig `yaml:"storage"`

	// Limits are those of each table. They are read anew at SIGHUP.
	Limits limits.Settings `yaml:"limits"`

	// Kafka is a list of clusters whose topics are read.
	Kafka []kafka.Cluster `yaml:"kafka,omitempty"`

	Query query.Settings `yaml:"query"`
	API   api.Settings   `yaml:"api"`

	// Of a cluster's processes only.
	Coord  coordConfig  `yaml:"coord"`
	Server serverConfig `yaml:"server"`
	Peer   peerConfig   `yaml:"peer"`
}

// serverConfig is who a storage server is.
type serverConfig struct {
	// ID names it, for good: two servers never share one. Default: the host's name.
	ID string `yaml:"id"`
	// Host and Zone are what may fail as one; placements of a partition keep apart. Default host: the host's name.
	Host string `yaml:"host"`
	Zone string `yaml:"zone"`
}

type httpConfig struct {
	// Listen is the address of the one port for writes and queries. Default 127.0.0.1:8428.
	Listen string `yaml:"listen"`
	// WebConfigFile is the exporter-toolkit's file for TLS, users and headers. Default none: plain HTTP for everybody.
	WebConfigFile string `yaml:"web_config_file"`
	// TokensFile lists the tokens that may come in, and for what. Default none.
	TokensFile string `yaml:"tokens_file"`
	// ShutdownTimeout is how long requests under way may take after SIGTERM. Default 30s.
	ShutdownTimeout duration `yaml:"shutdown_timeout"`
}

type adminConfig struct {
	// Listen is the address of pprof and reload; loopback, and off when empty. Default 127.0.0.1:8429.
	Listen string `yaml:"listen"`
	// Hosts are names, besides localhost and addresses, by which it may be called. Default none.
	Hosts []string `yaml:"hosts,omitempty"`
}

type tablesConfig struct {
	// CreateOnWrite makes a table at the first write to it. Default true.
	CreateOnWrite bool `yaml:"create_on_write"`
	// Retention of new tables; 0 keeps for ever. Default 0.
	Retention duration `yaml:"retention"`
	// RetentionConfirmed is until when the clock of this host is surely right: 2026-12-31, or with a time of day as in RFC 3339.
	// Partitions that retention holds because the clock jumped, or because more than half of a table would go at once,
	// are dropped while the clock is not later. Default none.
	RetentionConfirmed moment `yaml:"retention_confirmed"`
	// PartitionWidth of new tables. Default 1d.
	PartitionWidth duration `yaml:"partition_width"`
	// Max bounds the number of tables. Default 10,000.
	Max int `yaml:"max"`
	// NewPerSecond bounds the tables that writes make. Default 20, after a burst of 200.
	NewPerSecond int `yaml:"new_per_second"`
	// NewPartitionsPerRequest bounds the partitions that one request makes, NewPartitionsPerSecond those of a table: what
	// needs more is answered 503 or 429 and goes on with each time it is sent again. Default 64 and 50.
	NewPartitionsPerRequest int `yaml:"new_partitions_per_request"`
	NewPartitionsPerSecond  int `yaml:"new_partitions_per_second"`
}

type intakeConfig struct {
	BodyBytesMax     int64 `yaml:"body_bytes_max"`
	DecodedBytesMax  int64 `yaml:"decoded_bytes_max"`
	InFlightBytesMax int64 `yaml:"in_flight_bytes_max"`
	// KafkaInFlightBytesMax bounds the records of all Kafka topics that wait or are being written. Default 64 MiB.
	KafkaInFlightBytesMax int64    `yaml:"kafka_in_flight_bytes_max"`
	ConnsMax              int      `yaml:"conns_max"`
	FutureMax             duration `yaml:"future_max"`
	RowsMax               int      `yaml:"rows_max"`
	SeriesMax             int      `yaml:"series_max"`
	// SeriesAge is how long a dictionary of series is used before another follows it with those that are still written to;
	// where there are too many series, a twelfth of it. Default 2h.
	SeriesAge duration `yaml:"series_age"`
}

type influxConfig struct {
	// Separator stands between measurement and field. Default "_".
	Separator string `yaml:"separator"`
	// DBLabel is a label that every series gets with the database's name. Default none.
	DBLabel string `yaml:"db_label"`
	// Strings: count (drop and count string fields) or info (keep them as labels of an …_info series). Default count.
	Strings string `yaml:"strings"`
}

// otlpConfig has the names of Prometheus' configuration where Prometheus has the setting.
type otlpConfig struct {
	// TranslationStrategy of names: UnderscoreEscapingWithSuffixes, UnderscoreEscapingWithoutSuffixes,
	// NoUTF8EscapingWithSuffixes or NoTranslation. Default UnderscoreEscapingWithSuffixes.
	TranslationStrategy string `yaml:"translation_strategy"`
	// PromoteResourceAttributes become labels of every series. Default none.
	PromoteResourceAttributes []string `yaml:"promote_resource_attributes"`
	// PromoteAllResourceAttributes promotes all but IgnoreResourceAttributes. Default false.
	PromoteAllResourceAttributes bool     `yaml:"promote_all_resource_attributes"`
	IgnoreResourceAttributes     []string `yaml:"ignore_resource_attributes"`
	// KeepIdentifyingResourceAttributes keeps service.* as labels of target_info. Default false.
	KeepIdentifyingResourceAttributes bool `yaml:"keep_identifying_resource_attributes"`
	// PromoteScopeMetadata adds labels otel_scope_…. Default false.
	PromoteScopeMetadata bool `yaml:"promote_scope_metadata"`
	// ConvertHistogramsToNHCB stores explicit histograms as native histograms with custom buckets. Default false.
	ConvertHistogramsToNHCB bool `yaml:"convert_histograms_to_nhcb"`
	// TargetInfo makes the series target_info. Default true.
	TargetInfo bool `yaml:"target_info"`
	// Delta temporality: refuse, convert (to cumulative, summed in this process) or keep. Default refuse.
	Delta string `yaml:"delta"`
}

type storageConfig struct {
	// MemoryBytes is what the whole process may use; head_bytes_max, cache_bytes, intake.in_flight_bytes_max and
	// intake.series_max follow from it unless they are set (memory.go). Default 60 % of the machine or of the control
	// group. Written as bytes or with a unit: 4GiB.
	MemoryBytes    size   `yaml:"memory_bytes"`
	LogDir         string `yaml:"log_dir"`
	LogBytesMax    int64  `yaml:"log_bytes_max"`
	NoSync         bool   `yaml:"no_sync"`
	SkipDamagedLog bool   `yaml:"skip_damaged_log"`
	// LostFoundKeep is how long what was put aside in lost+found is kept; 0: until a person removes it. Default 30 d.
	LostFoundKeep duration `yaml:"lost_found_keep"`
	FreeBytesMin  uint64   `yaml:"free_bytes_min"`
	HeadBytesMax  int64    `yaml:"head_bytes_max"`
	CacheBytes    int64    `yaml:"cache_bytes"`
	// OpenFilesMax bounds the segment files open at once. Default: a half of what RLIMIT_NOFILE leaves, at most 4,096
	// (files.go).
	OpenFilesMax int      `yaml:"open_files_max"`
	FlushAge     duration `yaml:"flush_age"`
	FlushIdle    duration `yaml:"flush_idle"`
	FlushBytes   int64    `yaml:"flush_bytes"`
	MinorsMax    int      `yaml:"minors_max"`
	// SeriesQuietAfter is how long a series that is not written to stays in memory. Default 1h.
	SeriesQuietAfter duration `yaml:"series_quiet_after"`
	// ScrubBytesPerSecond bounds how fast all segments are read again to see that they are whole, ScrubPeriod how often that
	// begins at most; while the disk is busy it is an eighth. Defaults 8 MiB/s (1 TiB in 36 hours) and 7d. NoScrub leaves
	// it to others, `spillway verify` or the file system.
	ScrubBytesPerSecond size     `yaml:"scrub_bytes_per_second"`
	ScrubPeriod         duration `yaml:"scrub_period"`
	NoScrub             bool     `yaml:"no_scrub"`
}

func defaultConfig() config {
	return config{
		DataDir:  "./spillway-data",
		LogLevel: "info",
		HTTP:     httpConfig{Listen: "127.0.0.1:8428", ShutdownTimeout: duration(30 * time.Second)},
		Admin:    adminConfig{Listen: "127.0.0.1:8429"},
		Tables:   tablesConfig{CreateOnWrite: true, PartitionWidth: duration(24 * time.Hour)},
		Influx:   influxConfig{Separator: "_", Strings: "count"},
		Peer:     peerConfig{Listen: "127.0.0.1:8430"},
		Storage:  storageConfig{LostFoundKeep: duration(brick.LostFoundKeepDefault)},
		OTLP:     otlpConfig{TranslationStrategy: string(otlp.UnderscoreEscapingWithSuffixes), TargetInfo: true, Delta: string(otlp.DeltaRefuse)},
	}
}

// loadConfig puts defaults, file and environment together, in this order; flags go over it.
func loadConfig(file string) (config, error) {
	c := defaultConfig()
	if file != "" {
		c.file = file
		if err := c.read(file); err != nil {
			return c, err
		}
	}
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "SPILLWAY_CONFIG_FILE=") }) // kong has read it
	return c, c.environ(env)
}

// complete fills in what depends on the machine and checks everything.
func (c *config) complete() error {
	if err := c.budget(memoryOfMachine()); err != nil {
		return err
	}
	if err := c.descriptors(fileLimit()); err != nil {
		return err
	}
	c.Query.SetDefaults()
	c.API.SetDefaults()
	c.Limits.SetDefaults()
	return c.validate()
}

// read puts a YAML file over the configuration. Errors are Invalid and name the line.
func (c *config) read(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return fault.Wrap(err, fault.Invalid, "configuration file")
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return fault.Wrap(err, fault.Invalid, "configuration file %s", name)
	}
	return nil
}

// environPrefix begins the names of variables: SPILLWAY_STORAGE_HEAD_BYTES_MAX sets storage.head_bytes_max.
const environPrefix = "SPILLWAY_"

// environ puts SPILLWAY_… variables over the configuration: the path of the key in the YAML file, in capitals, joined
// by underscores. A variable that means no key is an error, like an unknown key in the file.
func (c *config) environ(env []string) error {
	set := map[string]string{}
	for _, e := range env {
		if name, value, _ := strings.Cut(e, "="); strings.HasPrefix(name, environPrefix) {
			set[strings.TrimPrefix(name, environPrefix)] = value
		}
	}
	var errs []error
	walk(reflect.ValueOf(c).Elem(), "", func(name string, v reflect.Value) {
		text, ok := set[name]
		if !ok {
			return
		}
		delete(set, name)
		strict := yaml.NewDecoder(strings.NewReader(text))
		strict.KnownFields(true)
		if err := strict.Decode(v.Addr().Interface()); err != nil && !errors.Is(err, io.EOF) {
			errs = append(errs, fmt.Errorf("%s%s=%s: %w", environPrefix, name, text, err))
		}
	})
	for _, name := range commandVariables {
		delete(set, name)
	}
	for name := range set {
		errs = append(errs, fmt.Errorf("%s%s means no setting", environPrefix, name))
	}
	return fault.Wrap(errors.Join(errs...), fault.Invalid, "environment")
}

// commandVariables are those of the commands for people, which a shell that starts processes may have too.
var commandVariables = []string{"SERVERS"}

// walk visits the scalar settings with the names of their variables.
func walk(v reflect.Value, path string, f func(name string, v reflect.Value)) {
	for i := range v.NumField() {
		if !v.Type().Field(i).IsExported() {
			continue
		}
		tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		name := strings.ToUpper(tag)
		if path != "" {
			name = path + "_" + name
		}
		if v.Field(i).Kind() == reflect.Struct {
			walk(v.Field(i), name, f)
		} else {
			f(name, v.Field(i))
		}
	}
}

// validate reports every mistake at once that no part reports itself.
func (c *config) validate() error {
	var errs []error
	if _, err := c.level(); err != nil {
		errs = append(errs, err)
	}
	if _, err := c.strings(); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, c.table().Validate(), c.Query.Validate(), c.API.Validate(), c.Limits.Validate(),
		fault.Annotate(c.otlp().Validate(), "otlp"))
	if len(c.Kafka) > 0 {
		errs = append(errs, c.kafka().Validate())
	}
	return errors.Join(errs...)
}

func (c *config) level() (slog.Level, error) {
	var l slog.Level
	err := l.UnmarshalText([]byte(c.LogLevel))
	return l, fault.Wrap(err, fault.Invalid, "log_level %q is none of debug, info, warn, error", c.LogLevel)
}

func (c *config) strings() (lineproto.StringPolicy, error) {
	switch c.Influx.Strings {
	case "count":
		return lineproto.CountStrings, nil
	case "info":
		return lineproto.InfoSeries, nil
	}
	return 0, fault.Errorf(fault.Invalid, "influx.strings %q is neither count nor info", c.Influx.Strings)
}

func (c *config) otlp() otlp.Settings {
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

func (c *config) table() topology.Config {
	return topology.Config{Retention: time.Duration(c.Tables.Retention), PartitionWidth: time.Duration(c.Tables.PartitionWidth)}
}

func (c *config) tables() tables.Settings {
	return tables.Settings{New: c.table(), CreateOnWrite: c.Tables.CreateOnWrite, TablesMax: c.Tables.Max, NewPerSecond: c.Tables.NewPerSecond}
}

func (c *config) brick() brick.Settings {
	keep := time.Duration(c.Storage.LostFoundKeep)
	if keep == 0 {
		keep = -1 // for ever
	}
	return brick.Settings{
		DataDir: c.DataDir, LogDir: c.Storage.LogDir, NoSync: c.Storage.NoSync,
		FreeBytesMin: c.Storage.FreeBytesMin, SkipDamagedLog: c.Storage.SkipDamagedLog, LostFoundKeep: keep,
	}
}

func (c *config) server() server.Settings {
	return server.Settings{
		HeadBytesMax: c.Storage.HeadBytesMax, CacheBytes: c.Storage.CacheBytes, OpenFilesMax: c.Storage.OpenFilesMax, LogBytesMax: c.Storage.LogBytesMax,
		StreamSeriesMax:     c.Intake.SeriesMax,
		ScrubBytesPerSecond: int64(c.Storage.ScrubBytesPerSecond), ScrubPeriod: time.Duration(c.Storage.ScrubPeriod), NoScrub: c.Storage.NoScrub,
		Partition: partition.Settings{
			HeadBytesMax: c.Storage.FlushBytes, FlushAge: time.Duration(c.Storage.FlushAge),
			FlushIdle: time.Duration(c.Storage.FlushIdle), MinorsMax: c.Storage.MinorsMax, QuietAfter: time.Duration(c.Storage.SeriesQuietAfter),
			CompactBytes: int(min(max(int64(c.Storage.MemoryBytes)/accountParts, compactLeast), compactMost)),
		},
	}
}

func (c *config) forward() forward.Settings {
	return forward.Settings{
		GenerationSeriesMax: c.Intake.SeriesMax, GenerationAge: time.Duration(c.Intake.SeriesAge), GenerationAgeMin: time.Duration(c.Intake.SeriesAge) / 12,
		NewPartitionsPerWrite: c.Tables.NewPartitionsPerRequest, NewPartitionsPerSecond: c.Tables.NewPartitionsPerSecond,
	}
}

func (c *config) intake() intake.Settings {
	policy, _ := c.strings() // validated
	return intake.Settings{
		BodyBytesMax: c.Intake.BodyBytesMax, DecodedBytesMax: c.Intake.DecodedBytesMax, InFlightBytesMax: c.Intake.InFlightBytesMax,
		ConnsMax: c.Intake.ConnsMax,
		Admit:    admit.Settings{FutureMax: time.Duration(c.Intake.FutureMax), RowsMax: c.Intake.RowsMax},
		Influx:   intake.InfluxSettings{Separator: c.Influx.Separator, DBLabel: c.Influx.DBLabel, Strings: policy},
		OTLP:     c.otlp(),
		Version:  version,
	}
}

// String is the configuration as YAML, as a file would hold it.
func (c *config) String() string {
	text, err := yaml.Marshal(c)
	if err != nil {
		fault.Bug("the configuration does not encode: %v", err)
	}
	return string(text)
}

// moment is a point in time in nanoseconds, written as 2026-12-31 or 2026-12-31T12:00:00Z; 0, written empty: none.
type moment point.Nanos

// UnmarshalText reads what MarshalText writes, and a date, which means its end.
func (m *moment) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*m = 0
		return nil
	}
	t, err := time.Parse(time.DateOnly, string(text))
	if err == nil {
		t = t.Add(24*time.Hour - 1)
	} else if t, err = time.Parse(time.RFC3339Nano, string(text)); err != nil {
		return fault.Wrap(err, fault.Invalid, "%q is no time; write 2026-12-31, or 2026-12-31T12:00:00Z", text)
	}
	*m = moment(t.UnixNano())
	return nil
}

// MarshalText writes RFC 3339.
func (m moment) MarshalText() ([]byte, error) {
	if m == 0 {
		return nil, nil
	}
	return []byte(time.Unix(0, int64(m)).UTC().Format(time.RFC3339Nano)), nil
}

// duration is a time span written as in Prometheus: 30s, 5m, 1d, 2w, 10y, or 0.
type duration time.Duration

// UnmarshalText reads 1d, 30s, …
func (d *duration) UnmarshalText(text []byte) error {
	v, err := model.ParseDuration(string(text))
	*d = duration(v)
	return err
}

// MarshalText writes what UnmarshalText reads.
func (d duration) MarshalText() ([]byte, error) { return []byte(model.Duration(d).String()), nil }

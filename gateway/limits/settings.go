package limits

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Settings are the block "limits" of the configuration file.
type Settings struct {
	// Gateways is among how many gateways the senders of a cluster are spread: each allows its share of rates, series and
	// concurrency, rounded up. Default 1: a limit is that of each gateway.
	Gateways int `yaml:"gateways"`
	// RemoteWriteStatus is what a remote-write sender gets at a limit that passes: 429, or 503, which Prometheus retries
	// even without retry_on_http_429. Default 429.
	RemoteWriteStatus int `yaml:"remote_write_status"`
	// MetricsTablesMax is how many tables have metrics of their own; the others are counted together as table="(other)".
	// Default 100. More: more series at whoever scrapes, some 20 for each table.
	MetricsTablesMax int `yaml:"metrics_tables_max"`
	// NewSeriesGrace is for how long after its start a gateway does not apply new_series_per_second: to it every series
	// is new then. Default 5m.
	NewSeriesGrace Span `yaml:"new_series_grace"`

	// Defaults are the limits of every table; Tables are what is different for one, key by key.
	Defaults Set            `yaml:"defaults"`
	Tables   map[string]Set `yaml:"tables"`
}

// Set is the limits of a table as they are written in a file: what is not there is nil. Values has the same fields, and
// says what they mean.
type Set struct {
	DryRun *bool  `yaml:"dry_run,omitempty"`
	Weight *Count `yaml:"weight,omitempty"`

	SamplesPerSecond   *Count `yaml:"samples_per_second,omitempty"`
	SamplesBurst       *Count `yaml:"samples_burst,omitempty"`
	BytesPerSecond     *Bytes `yaml:"bytes_per_second,omitempty"`
	BytesBurst         *Bytes `yaml:"bytes_burst,omitempty"`
	RequestBytes       *Bytes `yaml:"request_bytes,omitempty"`
	RequestConcurrency *Count `yaml:"request_concurrency,omitempty"`

	ActiveSeries       *Count `yaml:"active_series,omitempty"`
	NewSeriesPerSecond *Count `yaml:"new_series_per_second,omitempty"`
	NewSeriesBurst     *Count `yaml:"new_series_burst,omitempty"`
	LabelsPerSeries    *Count `yaml:"labels_per_series,omitempty"`
	LabelNameBytes     *Bytes `yaml:"label_name_bytes,omitempty"`
	LabelValueBytes    *Bytes `yaml:"label_value_bytes,omitempty"`

	PastMax   *Span `yaml:"past_max,omitempty"`
	FutureMax *Span `yaml:"future_max,omitempty"`

	QuerySamples     *Count `yaml:"query_samples,omitempty"`
	QuerySeries      *Count `yaml:"query_series,omitempty"`
	QueryBytes       *Bytes `yaml:"query_bytes,omitempty"`
	QueryRange       *Span  `yaml:"query_range,omitempty"`
	QueryTimeout     *Span  `yaml:"query_timeout,omitempty"`
	QueryConcurrency *Count `yaml:"query_concurrency,omitempty"`
}

// Values are the limits of one table in force; 0 is none, where nothing else is said.
type Values struct {
	// DryRun counts what the limits would refuse, and refuses nothing.
	DryRun bool
	// Weight is how often the table counts among those that share memory for rows and for series; 0 is 1.
	Weight Count

	// SamplesPerSecond bounds floats and histograms; SamplesBurst is how many may come at once after a pause. Burst 0:
	// what comes in burstDefault.
	SamplesPerSecond, SamplesBurst Count
	// BytesPerSecond bounds bodies as they are sent: compressed where the sender compresses.
	BytesPerSecond, BytesBurst Bytes
	// RequestBytes bounds one body as it is sent. intake.body_bytes_max bounds it too.
	RequestBytes Bytes
	// RequestConcurrency bounds the write requests under way.
	RequestConcurrency Count

	// ActiveSeries bounds the series that had a sample lately: in the last 10 min to 2 h.
	ActiveSeries Count
	// NewSeriesPerSecond bounds series that were not active before.
	NewSeriesPerSecond, NewSeriesBurst Count
	// LabelsPerSeries counts __name__ too.
	LabelsPerSeries                 Count
	LabelNameBytes, LabelValueBytes Bytes

	// PastMax and FutureMax are how far behind and ahead of the clock a sample may be. The table's retention bounds the
	// past too, and intake.future_max the future.
	PastMax, FutureMax Span

	// QuerySamples and QuerySeries are what one query may load from storage, QueryBytes the memory it may take.
	QuerySamples, QuerySeries Count
	QueryBytes                Bytes
	// QueryRange is how much time one selector of a query may read, its range included.
	QueryRange Span
	// QueryTimeout ends a query, waiting included.
	QueryTimeout Span
	// QueryConcurrency is how many queries run at once; ten times as many wait.
	QueryConcurrency Count
}

// Weight is that of a table, for processes that enforce no other limits.
func (s *Settings) Weight(table string) int64 {
	for _, set := range []Set{s.Tables[table], s.Defaults} {
		if set.Weight != nil {
			return max(1, int64(*set.Weight))
		}
	}
	return 1
}

// WeightMax bounds the weight of a table.
const WeightMax = 1000

// burstDefault is how much of a rate may come at once after a pause where no burst is set: a sender that was away for a
// moment sends what it kept.
const burstDefault = 10 * time.Second

// What a user need not set.
const (
	RemoteWriteStatusDefault = http.StatusTooManyRequests
	MetricsTablesMaxDefault  = 100
	NewSeriesGraceDefault    = Span(5 * time.Minute)
	LabelsPerSeriesDefault   = Count(64)
	LabelNameBytesDefault    = Bytes(1 << 10)
	LabelValueBytesDefault   = Bytes(8 << 10)
)

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func orSet[T any](v **T, def T) {
	if *v == nil {
		*v = &def
	}
}

// SetDefaults fills in what is not set.
func (s *Settings) SetDefaults() {
	orDefault(&s.Gateways, 1)
	orDefault(&s.RemoteWriteStatus, RemoteWriteStatusDefault)
	orDefault(&s.MetricsTablesMax, MetricsTablesMaxDefault)
	orDefault(&s.NewSeriesGrace, NewSeriesGraceDefault)
	orSet(&s.Defaults.LabelsPerSeries, LabelsPerSeriesDefault)
	orSet(&s.Defaults.LabelNameBytes, LabelNameBytesDefault)
	orSet(&s.Defaults.LabelValueBytes, LabelValueBytesDefault)
}

// Validate reports every mistake at once, as Invalid. Values that are not set are none.
func (s Settings) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	s.SetDefaults()
	if s.Gateways < 0 {
		bad("limits.gateways %d is negative", s.Gateways)
	}
	if s.RemoteWriteStatus != http.StatusTooManyRequests && s.RemoteWriteStatus != http.StatusServiceUnavailable {
		bad("limits.remote_write_status %d is neither 429 nor 503", s.RemoteWriteStatus)
	}
	if s.MetricsTablesMax < 0 {
		bad("limits.metrics_tables_max %d is negative", s.MetricsTablesMax)
	}
	var defaults Values
	s.Defaults.over(&defaults)
	for _, err := range defaults.check() {
		bad("limits.defaults.%w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Tables)) {
		if err := tablename.Check(name); err != nil {
			bad("limits.tables: %w", err)
		}
		v := defaults
		set := s.Tables[name]
		set.over(&v)
		for _, err := range v.check() {
			bad("limits.tables.%s.%w", name, err)
		}
	}
	return fault.Wrap(errors.Join(errs...), fault.Invalid, "limits")
}

// check finds what cannot be; the error begins with the key.
func (v *Values) check() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, burst := range []struct {
		key, rate   string
		value, from int64
	}{
		{"samples_burst", "samples_per_second", int64(v.SamplesBurst), int64(v.SamplesPerSecond)},
		{"bytes_burst", "bytes_per_second", int64(v.BytesBurst), int64(v.BytesPerSecond)},
		{"new_series_burst", "new_series_per_second", int64(v.NewSeriesBurst), int64(v.NewSeriesPerSecond)},
	} {
		if burst.value > 0 && burst.from == 0 {
			bad("%s is set, but %s is not", burst.key, burst.rate)
		}
	}
	if v.LabelsPerSeries > point.LabelsMax {
		bad("labels_per_series %d is more than the store can hold, %d", v.LabelsPerSeries, point.LabelsMax)
	}
	if v.LabelNameBytes > point.LabelNameMax {
		bad("label_name_bytes %d is more than the store can hold, %d", v.LabelNameBytes, point.LabelNameMax)
	}
	if v.Weight > WeightMax {
		bad("weight %d is more than %d", v.Weight, WeightMax)
	}
	if v.LabelValueBytes > point.LabelValueMax {
		bad("label_value_bytes %d is more than the store can hold, %d", v.LabelValueBytes, point.LabelValueMax)
	}
	return errs
}

// over puts what is set over v. Fields belong together by their names.
func (s *Set) over(v *Values) {
	from, to := reflect.ValueOf(s).Elem(), reflect.ValueOf(v).Elem()
	for i := range from.NumField() {
		if f := from.Field(i); !f.IsNil() {
			to.FieldByName(from.Type().Field(i).Name).Set(f.Elem())
		}
	}
}

// share is what one gateway of several enforces of limits that are the table's as a whole.
func (v Values) share(gateways int) Values {
	for _, c := range []*Count{&v.SamplesPerSecond, &v.SamplesBurst, &v.RequestConcurrency, &v.ActiveSeries, &v.NewSeriesPerSecond, &v.NewSeriesBurst, &v.QueryConcurrency} {
		*c = roundedUp(*c, gateways)
	}
	for _, b := range []*Bytes{&v.BytesPerSecond, &v.BytesBurst} {
		*b = roundedUp(*b, gateways)
	}
	return v
}

// roundedUp is a part of n that is 0 only if n is. It does not add first, as the largest number means that there is no limit.
func roundedUp[T ~int64](n T, parts int) T {
	if n == 0 {
		return 0
	}
	return (n-1)/T(parts) + 1
}

// inForce is Settings worked out.
type inForce struct {
	settings Settings
	defaults Values
	tables   map[string]Values
}

func (s Settings) resolve() *inForce {
	f := &inForce{settings: s, tables: make(map[string]Values, len(s.Tables))}
	s.Defaults.over(&f.defaults)
	for name, set := range s.Tables {
		v := f.defaults
		set.over(&v)
		f.tables[name] = v.share(s.Gateways)
	}
	f.defaults = f.defaults.share(s.Gateways)
	return f
}

func (f *inForce) of(table string) *Values {
	if v, ok := f.tables[table]; ok {
		return &v
	}
	return &f.defaults
}

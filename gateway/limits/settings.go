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
	"github.com/spillwaydb/spillway/protocols/setting"
)

// Settings are the block "limits" of the configuration file.
type Settings struct {
	Gateways          int          `yaml:"gateways" default:"1" min:"1" help:"Among how many gateways the senders of a cluster are spread: each allows its share of rates, series and concurrency, rounded up."`
	RemoteWriteStatus int          `yaml:"remote_write_status" default:"429" help:"Status that a remote-write sender gets at a limit that passes: 429, or 503, which Prometheus retries even without retry_on_http_429."`
	MetricsTablesMax  int          `yaml:"metrics_tables_max" default:"100" help:"How many tables have metrics of their own; the others are counted together as table=\"(other)\"." price:"More: some 20 series at the scraper for each."`
	NewSeriesGrace    setting.Span `yaml:"new_series_grace" default:"5m" help:"For how long after its start a gateway does not apply new_series_per_second: to it every series is new then."`

	Defaults Set            `yaml:"defaults"`
	Tables   map[string]Set `yaml:"tables" help:"What is different for one table, key by key."`
}

// Set is the limits of a table as written in a file: nil where a limit is not given. Values has the same fields.
type Set struct {
	DryRun *bool          `yaml:"dry_run,omitempty" help:"Count what the limits would refuse, and refuse nothing."`
	Weight *setting.Count `yaml:"weight,omitempty" max:"1000" auto:"1" help:"How often the table counts among those that share memory for rows and for series."`

	SamplesPerSecond   *setting.Count `yaml:"samples_per_second,omitempty" help:"Floats and histograms in a second."`
	SamplesBurst       *setting.Count `yaml:"samples_burst,omitempty" auto:"what comes in 10 s" help:"How many may come at once after a pause."`
	BytesPerSecond     *setting.Bytes `yaml:"bytes_per_second,omitempty" help:"Bytes of bodies as they are sent, compressed where the sender compresses, in a second."`
	BytesBurst         *setting.Bytes `yaml:"bytes_burst,omitempty" auto:"what comes in 10 s" help:"How many may come at once after a pause."`
	RequestBytes       *setting.Bytes `yaml:"request_bytes,omitempty" help:"One body as it is sent; intake.body_bytes_max bounds it too."`
	RequestConcurrency *setting.Count `yaml:"request_concurrency,omitempty" help:"Write requests under way."`

	ActiveSeries       *setting.Count `yaml:"active_series,omitempty" help:"Series that had a sample lately: in the last 10 min to 2 h."`
	NewSeriesPerSecond *setting.Count `yaml:"new_series_per_second,omitempty" help:"Series that were not active before, in a second."`
	NewSeriesBurst     *setting.Count `yaml:"new_series_burst,omitempty" auto:"what comes in 10 s" help:"How many may come at once after a pause."`
	LabelsPerSeries    *setting.Count `yaml:"labels_per_series,omitempty" default:"64" help:"Labels of a series, __name__ among them."`
	LabelNameBytes     *setting.Bytes `yaml:"label_name_bytes,omitempty" default:"1KiB" help:"Length of a label's name."`
	LabelValueBytes    *setting.Bytes `yaml:"label_value_bytes,omitempty" default:"8KiB" help:"Length of a label's value."`

	PastMax   *setting.Span `yaml:"past_max,omitempty" help:"How far behind the clock a sample may be; the table's retention bounds it too."`
	FutureMax *setting.Span `yaml:"future_max,omitempty" help:"How far ahead of the clock a sample may be; intake.future_max bounds it too."`

	QuerySamples     *setting.Count `yaml:"query_samples,omitempty" help:"Rows that one query may load from storage."`
	QuerySeries      *setting.Count `yaml:"query_series,omitempty" help:"Series that one query may load from storage."`
	QueryBytes       *setting.Bytes `yaml:"query_bytes,omitempty" help:"Memory that one query may take."`
	QueryRange       *setting.Span  `yaml:"query_range,omitempty" help:"Time that one selector of a query may read, its range included."`
	QueryTimeout     *setting.Span  `yaml:"query_timeout,omitempty" help:"Time of a query, waiting included."`
	QueryConcurrency *setting.Count `yaml:"query_concurrency,omitempty" help:"Queries that run at once; ten times as many wait."`
}

// Values are the limits of one table in force, as Set explains them; 0 is none, where nothing else is said.
type Values struct {
	DryRun bool
	Weight setting.Count // 0 is 1

	SamplesPerSecond, SamplesBurst setting.Count
	BytesPerSecond, BytesBurst     setting.Bytes
	RequestBytes                   setting.Bytes
	RequestConcurrency             setting.Count

	ActiveSeries                       setting.Count
	NewSeriesPerSecond, NewSeriesBurst setting.Count
	LabelsPerSeries                    setting.Count
	LabelNameBytes, LabelValueBytes    setting.Bytes

	PastMax, FutureMax setting.Span

	QuerySamples, QuerySeries setting.Count
	QueryBytes                setting.Bytes
	QueryRange                setting.Span
	QueryTimeout              setting.Span
	QueryConcurrency          setting.Count
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
// moment sends its backlog.
const burstDefault = 10 * time.Second

// SetDefaults fills in the fields that are not set.
func (s *Settings) SetDefaults() {
	setting.Fill(s)
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

// check finds impossible values; the error begins with the key.
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

// over copies the fields that are set over v. Fields belong together by their names.
func (s *Set) over(v *Values) {
	from, to := reflect.ValueOf(s).Elem(), reflect.ValueOf(v).Elem()
	for i := range from.NumField() {
		if f := from.Field(i); !f.IsNil() {
			to.FieldByName(from.Type().Field(i).Name).Set(f.Elem())
		}
	}
}

// share is the part that one of several gateways enforces of limits for the whole table.
func (v Values) share(gateways int) Values {
	for _, c := range []*setting.Count{&v.SamplesPerSecond, &v.SamplesBurst, &v.RequestConcurrency, &v.ActiveSeries, &v.NewSeriesPerSecond, &v.NewSeriesBurst, &v.QueryConcurrency} {
		*c = roundedUp(*c, gateways)
	}
	for _, b := range []*setting.Bytes{&v.BytesPerSecond, &v.BytesBurst} {
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

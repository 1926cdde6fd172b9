package api

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Settings are the numbers a user may set. The zero value means all defaults.
type Settings struct {
	// FormBytesMax bounds the body of a request with parameters. Default 4 MiB.
	FormBytesMax int64 `yaml:"form_bytes_max"`
	// ReadBytesMax bounds a remote-read request, as sent and unpacked. Default 4 MiB.
	ReadBytesMax int64 `yaml:"read_bytes_max"`
	// ReadFrameBytesMax is the size at which a streamed remote-read answer starts a new frame. Default 1 MiB. Larger:
	// fewer frames, more memory at the reader, which holds one at a time.
	ReadFrameBytesMax int `yaml:"read_frame_bytes_max"`
	// ReadSamplesMax bounds one query of a remote read that is not streamed, because its answer is built in memory.
	// Default 5,000,000 samples, of about 32 bytes each while it is built.
	ReadSamplesMax int `yaml:"read_samples_max"`
	// ReadRunningMax is how many remote reads run at once; ten times as many may wait. Default 10.
	ReadRunningMax int `yaml:"read_running_max"`
	// PointsMax is how many steps a range query may have. Default 11,000, as in Prometheus.
	PointsMax int `yaml:"points_max"`
	// Admin opens /api/v1/admin/tsdb/delete_series. Default off.
	Admin bool `yaml:"admin"`
	// CORSOrigin is a regular expression, anchored at both ends, of origins whose pages may read answers. Default ".*", as
	// in Prometheus: Grafana's browser access needs it, its server does not. "none" lets no page read.
	CORSOrigin string `yaml:"cors_origin"`
}

func setDefault[T int | int64](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// SetDefaults fills in what is zero.
func (s *Settings) SetDefaults() {
	setDefault(&s.FormBytesMax, 4<<20)
	setDefault(&s.ReadBytesMax, 4<<20)
	setDefault(&s.ReadFrameBytesMax, 1<<20)
	setDefault(&s.ReadSamplesMax, 5_000_000)
	setDefault(&s.ReadRunningMax, 10)
	setDefault(&s.PointsMax, 11_000)
	if s.CORSOrigin == "" {
		s.CORSOrigin = ".*"
	}
}

// Validate reports every mistake at once.
func (s *Settings) Validate() error {
	var errs []error
	positive := func(name string, v int64) {
		if v <= 0 {
			errs = append(errs, fmt.Errorf("api.%s must be positive", name))
		}
	}
	positive("form_bytes_max", s.FormBytesMax)
	positive("read_bytes_max", s.ReadBytesMax)
	positive("read_frame_bytes_max", int64(s.ReadFrameBytesMax))
	positive("read_samples_max", int64(s.ReadSamplesMax))
	positive("read_running_max", int64(s.ReadRunningMax))
	positive("points_max", int64(s.PointsMax))
	if _, err := regexp.Compile(s.CORSOrigin); err != nil {
		errs = append(errs, fmt.Errorf("api.cors_origin: %w", err))
	}
	return errors.Join(errs...)
}

// Build says what runs.
type Build struct{ Version, Revision, Date string }

// Deps are what the API is given.
type Deps struct {
	Query      *query.Reader
	Limits     *limits.Registry      // shown by status/tsdb; nil: there are none
	Log        *slog.Logger          // nil: silent
	Registerer prometheus.Registerer // nil: metrics are counted and shown nowhere

	// Checked says that contexts of requests carry an access.Identity, and that each route holds it against its need.
	Checked bool

	Build  Build
	Config func() string            // the configuration in force, as YAML, without secrets; nil: empty
	Flags  func() map[string]string // the command line; nil: none
}

// API serves the Prometheus HTTP API. Safe for concurrent use.
type API struct {
	// Constant after New.
	query    *query.Reader
	limits   *limits.Registry
	parser   parser.Parser
	log      *slog.Logger
	settings Settings
	metrics  *metrics
	routes   map[string]route
	checked  bool
	origin   *regexp.Regexp // nil: no CORS headers
	readGate *query.Gate
	build    Build
	config   func() string
	flags    func() map[string]string
	started  time.Time
}

// New makes the handler; zero settings take their defaults. It answers paths /api/v1/… and /t/<table>/api/v1/…, and 404
// to all others. The error is Invalid and names every mistake.
func New(d Deps, s Settings) (*API, error) {
	s.SetDefaults()
	if err := s.Validate(); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "settings")
	}
	a := &API{
		query: d.Query, limits: d.Limits, parser: d.Query.Parser(), log: d.Log, checked: d.Checked, settings: s, metrics: newMetrics(d.Registerer),
		readGate: query.NewGate(s.ReadRunningMax, 10*s.ReadRunningMax),
		build:    d.Build, config: d.Config, flags: d.Flags, started: time.Now(),
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if a.config == nil {
		a.config = func() string { return "" }
	}
	if a.flags == nil {
		a.flags = func() map[string]string { return map[string]string{} }
	}
	if s.CORSOrigin != "" {
		a.origin = regexp.MustCompile("^(?:" + s.CORSOrigin + ")$")
	}
	a.routes = a.table()
	return a, nil
}

var _ http.Handler = (*API)(nil)

package api

import (
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// Settings are the numbers and switches a user may set. The zero value means all defaults.
type Settings struct {
	FormBytesMax      setting.Bytes `yaml:"form_bytes_max" default:"4MiB" min:"1" help:"Bound of the body of a request with parameters. Beyond: 413."`
	ReadBytesMax      setting.Bytes `yaml:"read_bytes_max" default:"4MiB" min:"1" help:"Bound of a remote-read request, as sent and unpacked."`
	ReadFrameBytesMax setting.Bytes `yaml:"read_frame_bytes_max" default:"1MiB" min:"1" help:"Size at which a streamed remote-read answer starts a new frame." price:"More: fewer frames, more memory at the reader, which holds one at a time."`
	ReadSamplesMax    int           `yaml:"read_samples_max" default:"5000000" min:"1" help:"Bound of one query of a remote read that is not streamed, because its answer is built in memory: about 32 bytes a sample."`
	ReadRunningMax    int           `yaml:"read_running_max" default:"10" min:"1" help:"How many remote reads and exports of a table run at once, and half as many more of all tables, of which each has one before others have more; ten times as many may wait."`
	PointsMax         int           `yaml:"points_max" default:"11000" min:"1" help:"Bound of the steps of a range query, as in Prometheus."`
	Admin             bool          `yaml:"admin" flag:"enable-delete" help:"Open /api/v1/admin/tsdb/delete_series and clean_tombstones, and what Influx clients delete with."`
	CORSOrigin        string        `yaml:"cors_origin" default:".*" help:"Regular expression, anchored at both ends, of origins whose pages may read answers: any, as in Prometheus, since Grafana's browser access needs it. none lets no page read."`
}

// SetDefaults fills in zero fields.
func (s *Settings) SetDefaults() { setting.Fill(s) }

// Validate reports every mistake at once, as Invalid.
func (s *Settings) Validate() error {
	_, err := regexp.Compile(s.CORSOrigin)
	return errors.Join(setting.Check(s), fault.Wrap(err, fault.Invalid, "api.cors_origin"))
}

// Build names the version that runs.
type Build struct{ Version, Revision, Date string }

// Deps are the parts that the API uses.
type Deps struct {
	Query      *query.Reader
	Limits     *limits.Registry      // shown by status/tsdb; nil: there are none
	Log        *slog.Logger          // nil: silent
	Registerer prometheus.Registerer // nil: metrics are counted and shown nowhere
	Clock      *clock.Clock          // of queries without a time; nil: the machine's

	// Checked means that contexts of requests carry an access.Identity, and that each route checks it against its need.
	Checked bool

	Build  Build
	Config func() string            // the configuration in force, as YAML, without secrets; nil: empty
	Flags  func() map[string]string // the command line; nil: none
	// Reloaded says whether the last reload of the settings went well, and since when those in force are; nil: there was none.
	Reloaded func() (well bool, at time.Time)
}

// API serves the Prometheus HTTP API. Safe for concurrent use.
type API struct {
	// Constant after New.
	query    *query.Reader
	limits   *limits.Registry
	parser   parser.Parser
	log      *slog.Logger
	clock    *clock.Clock
	settings Settings
	metrics  *metrics
	routes   map[string]route
	checked  bool
	origin   *regexp.Regexp // nil: no CORS headers
	gates    *readGates
	build    Build
	config   func() string
	flags    func() map[string]string
	reloaded func() (well bool, at time.Time)
	started  time.Time
}

// New makes the handler; zero settings mean their defaults. It answers paths /api/v1/… and /t/<table>/api/v1/…, and 404
// to all others. The error is Invalid and names every mistake.
func New(d Deps, s Settings) (*API, error) {
	s.SetDefaults()
	if err := s.Validate(); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "settings")
	}
	a := &API{
		query: d.Query, limits: d.Limits, parser: d.Query.Parser(), log: d.Log, clock: d.Clock, checked: d.Checked, settings: s, metrics: newMetrics(d.Registerer),
		gates: newReadGates(s.ReadRunningMax),
		build: d.Build, config: d.Config, flags: d.Flags, reloaded: d.Reloaded, started: time.Now(),
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
	if a.reloaded == nil {
		a.reloaded = func() (bool, time.Time) { return true, a.started }
	}
	if s.CORSOrigin != "" {
		a.origin = regexp.MustCompile("^(?:" + s.CORSOrigin + ")$")
	}
	a.routes = a.table()
	return a, nil
}

var _ http.Handler = (*API)(nil)

package query

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Deps are what a Reader is given.
type Deps struct {
	Source     Source
	Log        *slog.Logger          // nil: silent
	Registerer prometheus.Registerer // nil: metrics are counted and shown nowhere
	Memory     *budget.Account       // what all queries may hold; nil: it is not counted
}

// Reader reads every table of one source within one set of limits.
type Reader struct {
	// Constant after New.
	source   Source
	settings Settings
	metrics  *metrics
	engine   *Engine
}

// New makes a Reader; zero settings take their defaults. The error is Invalid and names every mistake.
func New(d Deps, s Settings) (*Reader, error) {
	s.SetDefaults()
	if err := s.Validate(); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "settings")
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	r := &Reader{source: d.Source, settings: s, metrics: newMetrics(d.Registerer)}
	r.engine = newEngine(d, r.metrics, s)
	return r, nil
}

// Table gives a view of a table; whether it exists shows when it is read.
func (r *Reader) Table(name string) *Table { return &Table{name: name, reader: r} }

// Engine evaluates PromQL.
func (r *Reader) Engine() *Engine { return r.engine }

// Parser parses PromQL as the engine does, with the same experiments allowed.
func (r *Reader) Parser() parser.Parser { return r.engine.parser }

// Settings gives the settings in force.
func (r *Reader) Settings() Settings { return r.settings }

func (r *Reader) usage(loan *budget.Loan) *usage {
	return &usage{seriesMax: r.settings.SeriesMax, rowsMax: r.settings.RowsMax, loan: loan}
}

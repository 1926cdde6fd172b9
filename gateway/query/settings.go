package query

import (
	"errors"
	"fmt"
	"time"
)

// Settings are the numbers a user may set. The zero value means all defaults.
type Settings struct {
	// RunningMax is how many PromQL queries run at once. Default 20. More: each gets less of the processors, and all of
	// them together more memory.
	RunningMax int `yaml:"running_max"`
	// WaitingMax is how many more may wait for their turn; beyond it a query is refused as Throttled. Default 200. More:
	// a burst is served late instead of refused.
	WaitingMax int `yaml:"waiting_max"`
	// Timeout ends a query, waiting included. Default 2m.
	Timeout time.Duration `yaml:"timeout"`
	// Lookback is how far back an instant selector looks for its sample. Default 5m.
	Lookback time.Duration `yaml:"lookback"`
	// SubqueryStep is the step of a subquery that names none. Default 1m.
	SubqueryStep time.Duration `yaml:"subquery_step"`
	// SubqueryStepsMax is how many steps one subquery may have over all the time that it is evaluated for. Default
	// 3,000,000, a year every 15 s. A step takes 50 bytes before the first sample.
	SubqueryStepsMax int `yaml:"subquery_steps_max"`
	// SamplesMax is how many samples the engine may hold for one query. Default 50,000,000, of 16 bytes each.
	SamplesMax int `yaml:"samples_max"`
	// RowsMax is how many rows one query may load from storage. Default 100,000,000. A row takes 8 bytes, and 8 more
	// where series do not share their times.
	RowsMax int `yaml:"rows_max"`
	// SeriesMax is how many series one query may load from storage. Default 2,000,000, about 300 bytes each.
	SeriesMax int `yaml:"series_max"`

	// BytesMax is how much memory one query may hold, of what all of them may. Default two thirds of that, and less while others hold some.
	BytesMax int64 `yaml:"bytes_max"`

	// PlainEngine leaves every expression to Prometheus' engine. Default off: what can be evaluated over columns is, on
	// all processors, with the same result. On: dashboards take several times as long, on one processor each.
	PlainEngine bool `yaml:"plain_engine"`

	// RefusePartial refuses, with 503, answers that may lack rows because this gateway has not heard the coordination store for so long that its partition
	// map may be too old for them, unless a request has partial_response=true. Default off: they carry a warning. On: dashboards of the newest hours show errors
	// while the store is away.
	RefusePartial bool `yaml:"refuse_partial"`

	// ExperimentalFunctions allows the functions that PromQL may still change. Default off, as in Prometheus.
	ExperimentalFunctions bool `yaml:"experimental_functions"`
	// ExtendedSelectors allows the range selectors' anchored and smoothed. Default off.
	ExtendedSelectors bool `yaml:"extended_selectors"`
	// FillModifiers allows fill, fill_left and fill_right between vectors. Default off.
	FillModifiers bool `yaml:"fill_modifiers"`
	// DelayedNameRemoval keeps __name__ until the end of an evaluation. Default off, as in Prometheus.
	DelayedNameRemoval bool `yaml:"delayed_name_removal"`
}

func setDefault[T int | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// SetDefaults fills in what is zero.
func (s *Settings) SetDefaults() {
	setDefault(&s.RunningMax, 20)
	setDefault(&s.WaitingMax, 200)
	setDefault(&s.Timeout, 2*time.Minute)
	setDefault(&s.Lookback, 5*time.Minute)
	setDefault(&s.SubqueryStep, time.Minute)
	setDefault(&s.SubqueryStepsMax, 3_000_000)
	setDefault(&s.SamplesMax, 50_000_000)
	setDefault(&s.RowsMax, 100_000_000)
	setDefault(&s.SeriesMax, 2_000_000)
}

// Validate reports every mistake at once.
func (s *Settings) Validate() error {
	var errs []error
	positive := func(name string, ok bool) {
		if !ok {
			errs = append(errs, fmt.Errorf("query.%s must be positive", name))
		}
	}
	positive("running_max", s.RunningMax > 0)
	positive("waiting_max", s.WaitingMax > 0)
	positive("timeout", s.Timeout > 0)
	positive("lookback", s.Lookback > 0)
	positive("subquery_step", s.SubqueryStep >= time.Millisecond)
	positive("subquery_steps_max", s.SubqueryStepsMax > 0)
	positive("samples_max", s.SamplesMax > 0)
	positive("rows_max", s.RowsMax > 0)
	positive("bytes_max", s.BytesMax >= 0)
	positive("series_max", s.SeriesMax > 0)
	return errors.Join(errs...)
}

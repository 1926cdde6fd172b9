package query

import "github.com/spillwaydb/spillway/protocols/setting"

// Settings are the numbers a user may set. The zero value means all defaults.
type Settings struct {
	RunningMax       int           `yaml:"running_max" default:"20" min:"1" help:"How many PromQL queries run at once." price:"More: each gets less of the processors, and all of them together take more memory."`
	WaitingMax       int           `yaml:"waiting_max" default:"200" min:"1" help:"How many more may wait for their turn. Beyond: 503." price:"More: a burst is served late instead of refused."`
	Timeout          setting.Span  `yaml:"timeout" default:"2m" min:"1ms" help:"Time of a query, waiting included. Beyond: 503."`
	Lookback         setting.Span  `yaml:"lookback" default:"5m" min:"1ms" help:"How far back an instant selector looks for its sample."`
	SubqueryStep     setting.Span  `yaml:"subquery_step" default:"1m" min:"1ms" help:"Step of a subquery that names none."`
	SubqueryStepsMax int           `yaml:"subquery_steps_max" default:"3000000" min:"1" help:"Bound of the steps of one subquery over all the time that it is evaluated for: a year every 15 s. A step takes 50 bytes before the first sample."`
	SamplesMax       int           `yaml:"samples_max" default:"50000000" min:"1" help:"Bound of the samples that the engine holds for one query, of 16 bytes each."`
	RowsMax          int           `yaml:"rows_max" default:"100000000" min:"1" help:"Bound of the rows that one query loads from storage. A row takes 8 bytes, and 8 more where series do not share their times."`
	SeriesMax        int           `yaml:"series_max" default:"2000000" min:"1" help:"Bound of the series that one query loads from storage, about 300 bytes each."`
	BytesMax         setting.Bytes `yaml:"bytes_max" auto:"two thirds of what all queries may hold, and less while others hold some" help:"Memory that one query may hold."`

	SlowAfter setting.Span `yaml:"slow_after" default:"10s" min:"1ms" help:"A query that takes longer is logged at its end, with what was evaluated where, rows read, and bytes moved." price:"Shorter: more lines, at most as many as there are queries."`

	PlainEngine   bool         `yaml:"plain_engine" help:"Leave every expression to Prometheus' engine, instead of evaluating over columns on all processors what can be, with the same result." price:"On: dashboards take several times as long."`
	RefusePartial bool         `yaml:"refuse_partial" help:"Answer 503 instead of a warning where rows may be missing because the coordination store has been silent for so long that this gateway's partition map may be too old, unless a request has partial_response=true." price:"On: dashboards of the newest hours show errors while the store is away."`
	Consistency   string       `yaml:"consistency" default:"any" one_of:"any leader" help:"Which servers are asked for partitions with copies, unless a request has consistency=any or leader: any that surely has every row that was acked as kept by all, or the leader alone." price:"leader: rows acked at lower levels are seen at once; queries are not spread over the copies, and fail while a leader is away."`
	HedgeAfter    setting.Span `yaml:"hedge_after" auto:"as long as 19 of 20 of the newest answers took to begin, between 20ms and 1s" min:"20ms" max:"1s" help:"How long a query waits for one copy of a partition before it asks another too." price:"Shorter: more is asked twice."`

	ExperimentalFunctions bool `yaml:"experimental_functions" help:"Allow the functions that PromQL may still change; as in Prometheus."`
	UnquotedNames         bool `yaml:"unquoted_utf8_names" help:"Allow letters of all languages, and dots, in names outside quotes; as in Prometheus."`
	FillModifiers         bool `yaml:"fill_modifiers" help:"Allow fill, fill_left and fill_right between vectors."`
	DelayedNameRemoval    bool `yaml:"delayed_name_removal" help:"Keep __name__ until the end of an evaluation; as in Prometheus."`
}

// SetDefaults fills in zero fields.
func (s *Settings) SetDefaults() { setting.Fill(s) }

// Validate reports every mistake at once, as Invalid.
func (s *Settings) Validate() error { return setting.Check(s) }

package settings

import (
	"github.com/spillwaydb/spillway/gateway/admit"
	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/gateway/intake/kafka"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/protocols/otlp"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
	replicas "github.com/spillwaydb/spillway/storage/replica/runner"
	"github.com/spillwaydb/spillway/storage/server"
	unloads "github.com/spillwaydb/spillway/storage/unload/runner"
)

// PackageDefaults implements setting.Shared: the defaults of settings that a package has too, so that its tests run what users run. They are declared in the package alone;
// TestNoSettingHasASecondDefault finds those that are declared here as well.
func (*Config) PackageDefaults() map[string]any {
	plans, rows, srv := filled[master.Settings](), filled[partition.Settings](), filled[server.Settings]()
	fwd, in, admits := filled[forward.Settings](), filled[intake.Settings](), filled[admit.Settings]()
	made, otel := filled[tables.Settings](), filled[otlp.Settings]()
	return map[string]any{
		"tables.split_bytes":                plans.SplitBytes,
		"tables.balance_bytes":              plans.BalanceBytes,
		"tables.balance_rows":               plans.BalanceRows,
		"tables.dead_after":                 plans.DeadAfter,
		"tables.presplit_ahead":             plans.PresplitAhead,
		"tables.merge_from":                 plans.MergeFrom,
		"tables.max":                        made.TablesMax,
		"tables.new_per_second":             made.NewPerSecond,
		"tables.new_partitions_per_request": fwd.NewPartitionsPerWrite,
		"tables.new_partitions_per_second":  fwd.NewPartitionsPerSecond,

		"intake.body_bytes_max":            in.BodyBytesMax,
		"intake.decoded_bytes_max":         in.DecodedBytesMax,
		"intake.kafka_in_flight_bytes_max": filled[kafka.Settings]().InFlightBytesMax,
		"intake.future_max":                admits.FutureMax,
		"intake.rows_max":                  admits.RowsMax,
		"intake.series_age":                fwd.GenerationAge,
		"influx.separator":                 in.Influx.Separator,
		"otlp.translation_strategy":        otel.Translation,
		"otlp.delta":                       otel.Delta,

		"storage.log_bytes_max":           srv.LogBytesMax,
		"storage.lost_found_keep":         brick.LostFoundKeepDefault,
		"storage.free_bytes_min":          brick.FreeBytesMinDefault,
		"storage.flush_age":               rows.FlushAge,
		"storage.flush_idle":              rows.FlushIdle,
		"storage.flush_bytes":             rows.HeadBytesMax,
		"storage.minors_max":              rows.MinorsMax,
		"storage.series_quiet_after":      rows.QuietAfter,
		"storage.scrub_bytes_per_second":  srv.ScrubBytesPerSecond,
		"storage.scrub_period":            srv.ScrubPeriod,
		"storage.unload_bytes_per_second": filled[unloads.Settings]().BytesPerSecond,
		"storage.copy_bytes_per_second":   filled[replicas.Settings]().BytesPerSecond,
	}
}

// filled returns the settings of a package that sets none.
func filled[S any, P interface {
	*S
	SetDefaults()
}]() (s S) {
	P(&s).SetDefaults()
	return s
}

package ha

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// Settings are the block "ha" of the configuration file.
type Settings struct {
	Enabled         bool             `yaml:"enabled" help:"Keep the rows of one replica of each HA pair, in all tables: [limits.md](limits.md#ha-pairs)."`
	ClusterLabel    string           `yaml:"cluster_label" default:"cluster" help:"Label that names the pair. It stays."`
	ReplicaLabel    string           `yaml:"replica_label" default:"__replica__" help:"Label that names the sender within the pair. It is removed."`
	UpdateInterval  setting.Span     `yaml:"update_interval" default:"15s" min:"1s" help:"How often the gateways of a cluster record in the coordination store that the elected replica sends." price:"Less: more writes to the store; a gateway writes at most 128 pairs a second."`
	FailoverTimeout setting.Span     `yaml:"failover_timeout" default:"30s" min:"1s" help:"How long the elected replica is silent before another one is elected; at least twice update_interval, and longer than the senders' scrape interval." price:"More: a longer gap when a replica dies."`
	ClustersMax     int              `yaml:"clusters_max" default:"100" min:"1" max:"1000" help:"Bound of the pairs of a table. Rows of further ones are refused."`
	Tables          map[string]Table `yaml:"tables,omitempty" help:"Single tables: enabled, clusters_max."`
}

// Table is the settings of one table, which replace those of all.
type Table struct {
	Enabled     *bool `yaml:"enabled,omitempty" help:"Keep the rows of one replica of each pair in this table."`
	ClustersMax int   `yaml:"clusters_max,omitempty" max:"1000" help:"Bound of its pairs; 0: that of all tables."`
}

const (
	// EntriesMax bounds the pairs of all tables: as many as one gateway can write within the default failover_timeout.
	EntriesMax = 3000
	// RowsPerCommit bounds the rows of one transaction.
	RowsPerCommit = 32
	// CommitsPerTick bounds the transactions of one tick.
	CommitsPerTick = 4
	// TickEvery is how often a Machine wants its Tick.
	TickEvery = time.Second

	// retryAfter is the pause after a transaction that failed.
	retryAfter = 3 * time.Second
	// forgetAfter is how long no replica of a pair sends before the pair is forgotten.
	forgetAfter = 30 * time.Minute
)

// SetDefaults fills in the values that a test leaves out.
func (s *Settings) SetDefaults() { setting.Fill(s) }

// Validate reports every mistake at once. Errors: Invalid.
func (s *Settings) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fault.Errorf(fault.Invalid, format, args...)) }
	if s.ClusterLabel == "" || s.ReplicaLabel == "" || s.ClusterLabel == s.ReplicaLabel || s.ReplicaLabel == point.MetricName || s.ClusterLabel == point.MetricName {
		bad("ha.cluster_label %q and ha.replica_label %q must be two labels, and not the metric's name", s.ClusterLabel, s.ReplicaLabel)
	}
	if s.FailoverTimeout < 2*s.UpdateInterval {
		bad("ha.failover_timeout %s is shorter than two of ha.update_interval, %s: replicas that send would be taken for silent", s.FailoverTimeout, s.UpdateInterval)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Tables)) {
		if n := s.Tables[name].ClustersMax; n < 0 || n > 1000 {
			bad("ha.tables.%s.clusters_max %d is not between 0 and 1000", name, n)
		}
	}
	return errors.Join(errs...)
}

// Labels are those by which senders to a table differ; the zero value: all its rows are kept.
func (s *Settings) Labels(table string) point.ReplicaLabels {
	on := s.Enabled
	if t := s.Tables[table]; t.Enabled != nil {
		on = *t.Enabled
	}
	if !on {
		return point.ReplicaLabels{}
	}
	return point.ReplicaLabels{Cluster: s.ClusterLabel, Replica: s.ReplicaLabel}
}

func (s *Settings) clustersMax(table string) int {
	if n := s.Tables[table].ClustersMax; n > 0 {
		return n
	}
	return s.ClustersMax
}

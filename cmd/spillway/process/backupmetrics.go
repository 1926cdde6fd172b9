package process

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/backups"
)

// backupMetrics counts the backups that a process was asked for. A process that was started anew knows of none.
type backupMetrics struct {
	backups *prometheus.CounterVec // by outcome
	last    prometheus.Gauge       // s since 1970 of the end of the newest one that lacks nothing; 0: none
}

func newBackupMetrics(r prometheus.Registerer) *backupMetrics {
	m := &backupMetrics{
		backups: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "spillway_backup_backups_total",
			Help: "Backups that this process was asked for. By outcome: complete, incomplete (a damaged segment, or a server that is away, is missing in it), failed."}, []string{"outcome"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{Name: "spillway_backup_last_complete_timestamp_seconds",
			Help: "When the newest complete backup that this process was asked for ended; 0: there was none since it started."}),
	}
	for _, outcome := range []string{"complete", "incomplete", "failed"} {
		m.backups.WithLabelValues(outcome) // an increase from nothing would not be seen
	}
	r.MustRegister(m.backups, m.last)
	return m
}

// ended counts a backup.
func (m *backupMetrics) ended(news *backups.News, err error) {
	switch {
	case err != nil:
		m.backups.WithLabelValues("failed").Inc()
	case len(news.Missing) > 0:
		m.backups.WithLabelValues("incomplete").Inc()
	default:
		m.backups.WithLabelValues("complete").Inc()
		m.last.Set(float64(time.Now().UnixMilli()) / 1000)
	}
}

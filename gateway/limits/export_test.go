package limits

import "github.com/prometheus/client_golang/prometheus"

// Collector makes the metrics of a registry that was given no Registerer.
func Collector(r *Registry) prometheus.Collector { return collector{r} }

// Names are those of all limits.
func Names() []string { return limitNames[:] }

// Top lists at most n tables (0: all), the largest first: by samples accepted, then by samples refused.
func (r *Registry) Top(n int) []TableUse { return r.TopOf(n, func(string) bool { return true }) }

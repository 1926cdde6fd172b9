package limits

import "github.com/prometheus/client_golang/prometheus"

// Collector makes the metrics of a registry that was given no Registerer.
func Collector(r *Registry) prometheus.Collector { return collector{r} }

// Names are those of all limits.
func Names() []string { return limitNames[:] }

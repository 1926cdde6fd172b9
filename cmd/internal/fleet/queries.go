package fleet

import (
	"fmt"
	"strings"
	"time"
)

// Query is one query of a dashboard over the fleet.
type Query struct {
	Name string
	Expr string
	Span time.Duration // up to now; 0: now alone
	Step time.Duration
}

// Queries returns the queries of the time-series benchmark suite's devops use case in PromQL, and typical queries of
// overviews. hours is the time span of the data.
func Queries(hours int) []Query {
	all := time.Duration(hours) * time.Hour
	day := min(all, 12*time.Hour)
	hosts := func(n int) string {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("host_%d", i*7))
		}
		return strings.Join(names, "|")
	}
	return []Query{
		{"single-groupby-1-1-1", `max_over_time(cpu_usage_user{hostname="host_7"}[1m])`, time.Hour, time.Minute},
		{"single-groupby-1-1-12", `max_over_time(cpu_usage_user{hostname="host_7"}[1m])`, day, time.Minute},
		{"single-groupby-1-8-1", `max_over_time(cpu_usage_user{hostname=~"` + hosts(8) + `"}[1m])`, time.Hour, time.Minute},
		{"single-groupby-5-1-1", `max by (metric) (` + ofCPU(5, `max_over_time`, `{hostname="host_7"}`, "1m") + `)`, time.Hour, time.Minute},
		{"cpu-max-all-1", ofCPU(10, "max_over_time", `{hostname="host_7"}`, "1h"), min(all, 8*time.Hour), time.Hour},
		{"cpu-max-all-8", ofCPU(10, "max_over_time", `{hostname=~"`+hosts(8)+`"}`, "1h"), min(all, 8*time.Hour), time.Hour},
		{"double-groupby-1", `avg by (hostname) (avg_over_time(cpu_usage_user[1h]))`, day, time.Hour},
		{"double-groupby-5", byHost(5), day, time.Hour},
		{"double-groupby-all", byHost(10), day, time.Hour},
		{"high-cpu-1", `max_over_time(cpu_usage_user{hostname="host_7"}[1m]) > 90`, day, time.Minute},
		{"high-cpu-all", `max_over_time(cpu_usage_user[1m]) > 90`, day, time.Minute},
		{"lastpoint", `cpu_usage_user`, 0, 0},
		{"lastpoint-all", `{__name__=~"cpu_.*"}`, 0, 0},
		{"groupby-orderby-limit", `max(max_over_time(cpu_usage_user[1m]))`, time.Hour, time.Minute},
		{"rate-sum-by-region", `sum by (region) (rate(net_bytes_sent[5m]))`, time.Hour, time.Minute},
		{"rate-sum", `sum(rate(net_bytes_sent[5m]))`, day, 5 * time.Minute},
		{"topk-avg", `topk(10, avg_over_time(cpu_usage_user[5m]))`, time.Hour, time.Minute},
		{"quantile-by-team", `quantile by (team) (0.99, cpu_usage_user)`, time.Hour, time.Minute},
		{"ratio", `sum by (region) (rate(net_bytes_sent[5m])) / sum by (region) (rate(net_bytes_recv[5m]))`, time.Hour, time.Minute},
		{"memory-used", `100 * (1 - avg by (datacenter) (mem_available) / avg by (datacenter) (mem_total))`, time.Hour, time.Minute},
		{"count-by-name", `count by (__name__) ({__name__!=""})`, 0, 0},
		{"count-hosts", `count(count by (hostname) (cpu_usage_user))`, 0, 0},
	}
}

var cpuFields = []string{"usage_user", "usage_system", "usage_idle", "usage_nice", "usage_iowait", "usage_irq", "usage_softirq", "usage_steal", "usage_guest", "usage_guest_nice"}

// ofCPU asks for n metrics at once. A range function drops the name, so it is kept in another label.
func ofCPU(n int, function, selector, window string) string {
	var parts []string
	for _, f := range cpuFields[:n] {
		parts = append(parts, fmt.Sprintf(`label_replace(%s(cpu_%s%s[%s]), "metric", "%s", "", "")`, function, f, selector, window, f))
	}
	return strings.Join(parts, " or ")
}

func byHost(n int) string {
	var parts []string
	for _, f := range cpuFields[:n] {
		parts = append(parts, fmt.Sprintf(`label_replace(avg by (hostname) (avg_over_time(cpu_%s[1h])), "metric", "%s", "", "")`, f, f))
	}
	return strings.Join(parts, " or ")
}

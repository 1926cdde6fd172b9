package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// pages serves everything that is not of intake: the Prometheus API, health, metrics.
func (d *door) pages(promAPI http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/api/v1/", promAPI)
	mux.Handle("/t/", promAPI)
	mux.HandleFunc("GET "+kafkaStatusPath, d.kafkaStatus)
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{Registry: d.registry}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "Spillway is healthy.\n") })
	mux.HandleFunc("GET /-/ready", d.readiness)
	mux.HandleFunc("GET /{$}", d.index)
	return mux
}

// readiness answers 200 while writes and queries are taken, 503 with the reason otherwise.
func (d *door) readiness(w http.ResponseWriter, _ *http.Request) {
	if d.behind.health != nil {
		if err := d.behind.health(); err != nil {
			http.Error(w, "The store is fenced: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	if !d.ready.Load() {
		http.Error(w, "Spillway is stopping.", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "Spillway is ready.\n")
}

func (d *door) index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "Spillway %s\n\n", version)
	fmt.Fprintln(w, "writes   /api/v1/write  /write  /api/v2/write  /api/v3/write_lp")
	fmt.Fprintln(w, "queries  /api/v1/query  /api/v1/query_range  /api/v1/series  /api/v1/labels  /api/v1/read")
	fmt.Fprintln(w, "tables   put /t/<table> in front of any of these")
	fmt.Fprintln(w, "state    /metrics  /-/healthy  /-/ready  /api/v1/status/tsdb  /api/v1/status/kafka")
}

// adminPages serves profiles, on an address of their own.
func (d *door) adminPages() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.Handle("/metrics", promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{Registry: d.registry}))
	return mux
}

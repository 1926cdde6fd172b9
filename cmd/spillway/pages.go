package main

import (
	"io"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/spillwaydb/spillway/gateway/ui"
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
	mux.Handle("GET "+ui.Path, ui.JSON(d.status))
	mux.Handle("GET /{$}", ui.Page(d.status))
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

// adminPages serves profiles, on an address of their own.
func (d *door) adminPages() http.Handler {
	mux := profilePages()
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{Registry: d.registry}))
	return mux
}

func profilePages() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

package intake

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// asJSON writes an answer made of our own structs.
func asJSON(status int, v any) Response {
	body, err := json.Marshal(v)
	if err != nil {
		fault.Bug("an answer does not encode: %v", err)
	}
	return jsonResponse(status, body)
}

// ping serves /ping: 204, or with ?verbose=true a version in JSON.
func (f *Front) ping(_ context.Context, c *call) Response {
	r := Response{Status: http.StatusNoContent}
	if v := c.Query.Get("verbose"); v != "" && v != "0" && v != "false" {
		r = asJSON(http.StatusOK, struct {
			Version string `json:"version"`
		}{influxVersion})
	}
	f.signInflux(c, &r)
	return r
}

// ping2 serves /api/v2/ping.
func (f *Front) ping2(_ context.Context, c *call) Response {
	r := Response{Status: http.StatusNoContent}
	f.signInflux(c, &r)
	return r
}

// health serves /health as Influx v2 does. It says nothing about storage: a write says that itself.
func (f *Front) health(_ context.Context, c *call) Response {
	h := struct {
		Name    string `json:"name"`
		Message string `json:"message"`
		Status  string `json:"status"`
		Checks  []any  `json:"checks"`
		Version string `json:"version"`
		Commit  string `json:"commit"`
	}{"influxdb", "ready for queries and writes", "pass", []any{}, influxVersion, "spillway " + f.settings.Version}
	status := http.StatusOK
	if f.draining.Load() {
		h.Message, h.Status, status = "shutting down", "fail", http.StatusServiceUnavailable
	}
	r := asJSON(status, h)
	f.signInflux(c, &r)
	return r
}

// ready serves /ready as Influx v2 does.
func (f *Front) ready(_ context.Context, c *call) Response {
	s := struct {
		Status  string    `json:"status"`
		Started time.Time `json:"started"`
		Up      string    `json:"up"`
	}{"ready", f.started.UTC(), time.Since(f.started).Round(time.Millisecond).String()}
	status := http.StatusOK
	if f.draining.Load() {
		s.Status, status = "shutting down", http.StatusServiceUnavailable
	}
	r := asJSON(status, s)
	f.signInflux(c, &r)
	return r
}

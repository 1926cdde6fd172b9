package api

import (
	"errors"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// promVersion is the Prometheus version of this API. Clients decide by it which requests they may send.
const promVersion = "3.16.0"

// buildInfo leaves "features" out: clients treat a server with "features" as Mimir with a ruler.
func (a *API) buildInfo(*call) (answer, error) {
	return value(map[string]string{
		"version": promVersion, "revision": a.build.Revision, "branch": "", "buildUser": "", "buildDate": a.build.Date,
		"goVersion":   runtime.Version(),
		"application": "Spillway", "applicationVersion": a.build.Version,
	}), nil
}

type runtimeInfo struct {
	StartTime           time.Time `json:"startTime"`
	CWD                 string    `json:"CWD"`
	Hostname            string    `json:"hostname"`
	ServerTime          time.Time `json:"serverTime"`
	ReloadConfigSuccess bool      `json:"reloadConfigSuccess"`
	LastConfigTime      time.Time `json:"lastConfigTime"`
	CorruptionCount     int64     `json:"corruptionCount"`
	GoroutineCount      int       `json:"goroutineCount"`
	GOMAXPROCS          int       `json:"GOMAXPROCS"`
	GOMEMLIMIT          int64     `json:"GOMEMLIMIT"`
	GOGC                string    `json:"GOGC"`
	GODEBUG             string    `json:"GODEBUG"`
	StorageRetention    string    `json:"storageRetention"`
}

func (a *API) runtimeInfo(*call) (answer, error) {
	cwd, _ := os.Getwd() // "" if it is unavailable
	host, _ := os.Hostname()
	well, at := a.reloaded()
	return value(runtimeInfo{
		StartTime: a.started.UTC(), CWD: cwd, Hostname: host, ServerTime: time.Now().UTC(),
		ReloadConfigSuccess: well, LastConfigTime: at.UTC(),
		GoroutineCount: runtime.NumGoroutine(), GOMAXPROCS: runtime.GOMAXPROCS(0), GOMEMLIMIT: debug.SetMemoryLimit(-1),
		GOGC: os.Getenv("GOGC"), GODEBUG: os.Getenv("GODEBUG"), StorageRetention: "per table",
	}), nil
}

func (a *API) configYAML(*call) (answer, error) {
	return value(map[string]string{"yaml": a.config()}), nil
}

func (a *API) flagValues(*call) (answer, error) { return value(a.flags()), nil }

// features lists the parts of PromQL and of this API that there are.
func (a *API) features(*call) (answer, error) {
	f := a.query.Engine().Features()
	f["api"] = map[string]bool{
		"admin": a.settings.Admin, "label_values_match": true, "lifecycle": false, "query_stats": true,
		"query_warnings": true, "time_range_labels": true, "time_range_series": true,
	}
	return value(f), nil
}

type tsdbStatus struct {
	Head struct {
		Series     uint64 `json:"numSeries"`
		LabelPairs uint64 `json:"numLabelPairs"`
		Chunks     uint64 `json:"chunkCount"`
		MinTime    int64  `json:"minTime"`
		MaxTime    int64  `json:"maxTime"`
	} `json:"headStats"`
	SeriesByName  []nameCount `json:"seriesCountByMetricName"`
	ValuesByLabel []nameCount `json:"labelValueCountByLabelName"`
	BytesByLabel  []nameCount `json:"memoryInBytesByLabelName"`
	SeriesByPair  []nameCount `json:"seriesCountByLabelValuePair"`
	// Limits are those that the table has, the nearest first. Prometheus has nothing of the kind.
	Limits []limits.Use `json:"limits"`
}

type nameCount struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// topMax bounds the top lists of status/tsdb.
const topMax = 10_000

func (a *API) tsdbStatus(c *call) (answer, error) {
	topN := 10
	if v := c.Form.Get("limit"); v != "" {
		n, err := strconv.Atoi(v)
		switch {
		case err != nil || n < 1:
			return answer{}, badData(errors.New("limit must be a positive number"))
		case n > topMax:
			return answer{}, badDataf("limit must not exceed %d", topMax)
		}
		topN = n
	}
	st, err := c.table.Stats(c.ctx, topN)
	if err != nil {
		return answer{}, err
	}
	var out tsdbStatus
	out.Head.Series, out.Head.LabelPairs, out.Head.Chunks = st.Series, st.LabelPairs, uint64(st.Segments)
	out.Head.MinTime, out.Head.MaxTime = point.MillisOf(st.MinTime), point.MillisOf(st.MaxTime)
	if st.HeadRows+st.SegmentRows == 0 {
		out.Head.MinTime, out.Head.MaxTime = math.MaxInt64, math.MinInt64 // as Prometheus does for an empty head
	}
	out.SeriesByName, out.ValuesByLabel = counts(st.SeriesByName), counts(st.ValuesByLabel)
	out.BytesByLabel, out.SeriesByPair = counts(st.BytesByLabel), counts(st.SeriesByPair)
	out.Limits = a.limits.Uses(c.table.Name())
	return value(out), nil
}

func counts(list []peer.NameCount) []nameCount {
	out := make([]nameCount, len(list))
	for i, c := range list {
		out[i] = nameCount{Name: c.Name, Value: c.Count}
	}
	return out
}

type metricMetadata struct {
	Type string `json:"type"`
	Unit string `json:"unit"`
	Help string `json:"help"`
}

// metadata lists descriptions by metric; limit bounds the metrics, limit_per_metric the descriptions of each.
func (a *API) metadata(c *call) (answer, error) {
	limit, err := c.count("limit")
	if err != nil {
		return answer{}, err
	}
	perMetric, err := c.count("limit_per_metric")
	if err != nil {
		return answer{}, err
	}
	rows, err := c.table.Metadata(c.ctx, c.Form.Get("metric"))
	if err != nil {
		return answer{}, err
	}
	out := map[string][]metricMetadata{}
	for _, r := range rows {
		have, known := out[r.Metric]
		if !known && limit >= 0 && len(out) >= limit || perMetric > 0 && len(have) >= perMetric {
			continue
		}
		out[r.Metric] = append(have, metricMetadata{Type: r.Type, Unit: r.Unit, Help: r.Help})
	}
	return value(out), nil
}

// count returns a number, -1 when it is absent.
func (c *call) count(name string) (int, error) {
	v := c.Form.Get(name)
	if v == "" {
		return -1, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return 0, badDataf("%s must be a number", name)
	}
	return n, nil
}

// rules lists none, but refuses an invalid request.
func (a *API) rules(c *call) (answer, error) {
	if _, err := a.matchers(c); err != nil {
		return answer{}, badData(err)
	}
	switch typ := strings.ToLower(c.URL.Query().Get("type")); typ {
	case "", "alert", "record":
	default:
		return answer{}, invalidParam("type", errors.New("not supported value "+strconv.Quote(typ)))
	}
	return answer{data: func(e *encoder) { e.raw(`{"groups":[]}`) }}, nil
}

//go:build clients

package clienttest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// api is a Prometheus API to ask, Spillway's or Prometheus' own.
type api struct {
	t    *testing.T
	name string
	url  string
}

// envelope is the frame of every answer.
type envelope struct {
	Status    string          `json:"status"`
	Data      json.RawMessage `json:"data"`
	ErrorType string          `json:"errorType"`
	Error     string          `json:"error"`
	Warnings  []string        `json:"warnings"`
	Infos     []string        `json:"infos"`
}

// get asks path with pairs of parameters.
func (a api) get(path string, params ...string) (envelope, error) {
	v := url.Values{}
	for i := 0; i < len(params); i += 2 {
		v.Add(params[i], params[i+1])
	}
	resp, err := http.Get(a.url + path + "?" + v.Encode())
	if err != nil {
		return envelope{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return envelope{}, err
	}
	var e envelope
	if err := json.Unmarshal(body, &e); err != nil {
		return e, fmt.Errorf("%s: %s: %.200s", a.name, resp.Status, body)
	}
	if e.Status != "success" {
		return e, fmt.Errorf("%s: %s", resp.Status, e.Error)
	}
	return e, nil
}

// sample is a value at a time in milliseconds.
type sample struct {
	ms    int64
	value float64
}

// UnmarshalJSON reads [1435781451.781,"1"].
func (s *sample) UnmarshalJSON(text []byte) error {
	var at json.Number
	var value string
	if err := json.Unmarshal(text, &[]any{&at, &value}); err != nil {
		return err
	}
	seconds, err := at.Float64()
	if err != nil {
		return err
	}
	s.ms = time.Duration(seconds*1e9 + 0.5e6).Milliseconds()
	s.value, err = strconv.ParseFloat(value, 64)
	return err
}

// rows are samples by series; a series is written as {"__name__":"up",…}, sorted by name.
type rows map[string][]sample

// matrix asks for rows.
func (a api) matrix(path string, params ...string) (rows, error) {
	e, err := a.get(path, params...)
	if err != nil {
		return nil, err
	}
	var data struct {
		ResultType string
		Result     []struct {
			Metric map[string]string
			Values []sample
		}
	}
	if err := json.Unmarshal(e.Data, &data); err != nil {
		return nil, err
	}
	if data.ResultType != "matrix" {
		return nil, fmt.Errorf("%s answers with a %s instead of a matrix", a.name, data.ResultType)
	}
	found := rows{}
	for _, s := range data.Result {
		key := seriesKey(s.Metric)
		if _, twice := found[key]; twice {
			return nil, fmt.Errorf("%s has series %s twice", a.name, key)
		}
		found[key] = s.Values
	}
	return found, nil
}

// seriesKey is the form of a series under which it is compared.
func seriesKey(labels map[string]string) string {
	text, _ := json.Marshal(labels) // sorts by name
	return string(text)
}

// differ reports the first few differences between the wanted and the found values.
func differ(want, got rows) error {
	var says []string
	for _, key := range slices.Sorted(maps.Keys(want)) {
		g, ok := got[key]
		switch w := want[key]; {
		case !ok:
			says = append(says, fmt.Sprintf("missing: %s, %d samples", key, len(w)))
		case !slices.EqualFunc(w, g, same):
			says = append(says, fmt.Sprintf("%s: %s", key, firstDifference(w, g)))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[key]; !ok {
			says = append(says, fmt.Sprintf("not wanted: %s, %d samples", key, len(got[key])))
		}
	}
	if len(says) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d series differ:\n%s", len(says), len(want), strings.Join(says[:min(len(says), 10)], "\n"))
}

// same treats NaN as equal to itself and keeps the zeros apart.
func same(a, b sample) bool {
	return a.ms == b.ms && (math.Float64bits(a.value) == math.Float64bits(b.value) || a.value != a.value && b.value != b.value)
}

func firstDifference(want, got []sample) string {
	for i := range min(len(want), len(got)) {
		if !same(want[i], got[i]) {
			return fmt.Sprintf("sample %d is %v, not %v", i, got[i], want[i])
		}
	}
	return fmt.Sprintf("%d samples, not %d", len(got), len(want))
}

// seconds writes a time for the API.
func seconds(t time.Time) string {
	return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64)
}

// checkSeries compares the label sets of /series with those of the rows.
func checkSeries(t *testing.T, a api, start, end time.Time, want rows) {
	t.Helper()
	e, err := a.get("/api/v1/series", "match[]", `{__name__=~".+"}`, "start", seconds(start), "end", seconds(end))
	if err != nil {
		t.Error(err)
		return
	}
	var found []map[string]string
	if err := json.Unmarshal(e.Data, &found); err != nil {
		t.Error(err)
		return
	}
	got := rows{}
	for _, labels := range found {
		key := seriesKey(labels)
		got[key] = want[key]
	}
	if err := differ(want, got); err != nil || len(found) != len(want) {
		t.Errorf("series: %d of them, not %d: %v", len(found), len(want), err)
	}
}

// metric sums the values of one of a server's own metrics over its labels, or of those series that have the labels named
// in pairs.
func (a api) metric(name string, labels ...string) float64 {
	a.t.Helper()
	resp, err := http.Get(a.url + "/metrics")
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	sum := 0.0
	for _, m := range families[name].GetMetric() { // a metric without series is not exposed
		if has(m, labels) {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

func has(m *dto.Metric, labels []string) bool {
	for pair := range slices.Chunk(labels, 2) {
		if !slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == pair[0] && l.GetValue() == pair[1] }) {
			return false
		}
	}
	return true
}

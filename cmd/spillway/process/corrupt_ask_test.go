package process

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
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// askCorrupt asks for everything of a table in [lo, hi] milliseconds. said is the store's report of damage: an error's
// message or the warnings of an answer; err is an error that no user should see, or no answer at all. Rows come with
// warnings, too, and then only rows that should not be there count.
func askCorrupt(c *http.Client, base, table string, lo, hi int64) (rows corruptRows, said string, err error) {
	path := base + "/t/" + table + "/api/v1/"
	at, over := "4102444800", "36500d" // all written times
	if lo != math.MinInt64 {
		at, over = strconv.FormatFloat(float64(hi)/1000, 'f', 3, 64), fmt.Sprintf("%dms", hi-lo+1)
	}
	selector := url.Values{"query": {`{__name__=~".+"}[` + over + `]`}, "time": {at}, "timeout": {"60s"}}
	var matrix struct {
		Result []struct {
			Metric     map[string]string
			Values     [][2]json.RawMessage
			Histograms [][2]json.RawMessage
		}
	}
	warned, err := getCorrupt(c, path+"query?"+selector.Encode(), &matrix)
	said += warned
	rows.Series = map[string][]corruptRow{}
	for _, s := range matrix.Result {
		name := seriesName(s.Metric)
		if rows.Series[name] != nil {
			return rows, said, fmt.Errorf("series %s comes twice", name)
		}
		for _, v := range append(s.Values, s.Histograms...) {
			seconds, _ := strconv.ParseFloat(string(v[0]), 64)
			rows.Series[name] = append(rows.Series[name], corruptRow{int64(math.Round(seconds * 1000)), string(v[1])})
		}
	}
	if lo != math.MinInt64 || err != nil || said != "" {
		return rows, said, err
	}
	var raw json.RawMessage
	all := url.Values{"query": {`{__name__=~".+"}`}, "start": {"0"}, "end": {"4102444800"}}
	warned, err = getCorrupt(c, path+"query_exemplars?"+all.Encode(), &raw)
	rows.Exemplars = string(raw)
	if said += warned; err != nil {
		return rows, said, err
	}
	warned, err = getCorrupt(c, path+"metadata", &raw)
	rows.Metadata = string(raw)
	return rows, said + warned, err
}

// seriesName writes labels as PromQL does.
func seriesName(labels map[string]string) string {
	var b []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if k != "__name__" {
			b = append(b, fmt.Sprintf("%s=%q", k, labels[k]))
		}
	}
	return labels["__name__"] + "{" + strings.Join(b, ",") + "}"
}

// getCorrupt fetches an answer of the Prometheus API. That a query's time was over says nothing of the store: where others have the processors it is
// asked again.
func getCorrupt(c *http.Client, address string, data any) (said string, err error) {
	for end := time.Now().Add(processtest.Patience); ; {
		said, timeout, err := tryCorrupt(c, address, data)
		if !timeout || time.Now().After(end) {
			return said, err
		}
	}
}

func tryCorrupt(c *http.Client, address string, data any) (said string, timeout bool, err error) {
	answer, err := c.Get(address)
	if err != nil {
		return "", false, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", false, err
	}
	var envelope struct {
		ErrorType string
		Error     string
		Warnings  []string
		Data      json.RawMessage
	}
	if err := json.Unmarshal(text, &envelope); err != nil {
		return "", false, fmt.Errorf("status %d: %.300s: %w", answer.StatusCode, text, err)
	}
	switch {
	case answer.StatusCode == http.StatusNotFound:
		return "", false, nil // "there is no such table" means that nothing was lost: it is an empty answer
	case answer.StatusCode != http.StatusOK:
		return fmt.Sprintf("%d: %s", answer.StatusCode, envelope.Error), envelope.ErrorType == "timeout", nil
	}
	return strings.Join(envelope.Warnings, "; "), false, json.Unmarshal(envelope.Data, data)
}

// differ describes how the rows read differ from the acked ones, in [lo, hi] milliseconds; extra counts only rows that
// should not be there. Empty: not at all.
func (want corruptRows) differ(got corruptRows, lo, hi int64, extra bool) string {
	lacking, invented := 0, 0
	example := ""
	note := func(n *int, series string, r corruptRow) {
		if *n++; example == "" {
			example = fmt.Sprintf("%s at %d: %.60s", series, r.Ms, r.Value)
		}
	}
	for series, rows := range want.Series {
		have := map[corruptRow]bool{}
		for _, r := range got.Series[series] {
			have[r] = true
		}
		for _, r := range rows {
			if !extra && r.Ms >= lo && r.Ms <= hi && !have[r] {
				note(&lacking, series, r)
			}
		}
	}
	for series, rows := range got.Series {
		sent := map[corruptRow]bool{}
		for _, r := range want.Series[series] {
			sent[r] = true
		}
		for _, r := range rows {
			if !sent[r] {
				note(&invented, series, r)
			}
		}
	}
	if lacking+invented > 0 {
		return fmt.Sprintf("%d rows missing, %d rows invented, as %s", lacking, invented, example)
	}
	if lo == math.MinInt64 && !extra && want.Exemplars != got.Exemplars {
		return fmt.Sprintf("exemplars differ: %d bytes of JSON instead of %d", len(got.Exemplars), len(want.Exemplars))
	}
	if lo == math.MinInt64 && !extra && want.Metadata != got.Metadata {
		return fmt.Sprintf("metadata differs: %.200s instead of %.200s", got.Metadata, want.Metadata)
	}
	return ""
}

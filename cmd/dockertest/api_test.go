//go:build docker

package dockertest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// api is the HTTP API of a Spillway, or a Prometheus.
type api struct {
	url   string
	token string // "": none is sent
}

// do sends a request. A request that gets no answer has status 0, and the reason as its body.
func (a api) do(method, path, body string) (status int, answer string) {
	r, err := http.NewRequest(method, a.url+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	client := http.Client{Timeout: time.Minute}
	resp, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

// write sends a line; nil: it was acked.
func (a api) write(line string) error {
	if status, answer := a.do(http.MethodPost, "/write?db=default", line); status != http.StatusNoContent {
		return fmt.Errorf("write of %q: %d %s", line, status, answer)
	}
	return nil
}

// values are the values of a query's series now, as their texts.
func (a api) values(query string) ([]string, error) {
	status, text := a.do(http.MethodGet, "/api/v1/query?query="+url.QueryEscape(query), "")
	var answer struct {
		Data struct {
			Result []struct {
				Value [2]any `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("query %s: %d %.500s %v", query, status, text, err)
	}
	var all []string
	for _, r := range answer.Data.Result {
		all = append(all, fmt.Sprint(r.Value[1]))
	}
	return all, nil
}

// has returns nil if a query has one series, with that value.
func (a api) has(query, want string) error {
	got, err := a.values(query)
	if err != nil {
		return err
	}
	if len(got) != 1 || got[0] != want {
		return fmt.Errorf("query %s: %q, want %s", query, got, want)
	}
	return nil
}

// watched returns nil if a Prometheus scrapes all of its targets, want of them, and evaluates all of its rules, without an error.
func (a api) watched(want int) error {
	var targets struct {
		Data struct {
			Active []struct {
				URL       string `json:"scrapeUrl"`
				Health    string `json:"health"`
				LastError string `json:"lastError"`
			} `json:"activeTargets"`
		} `json:"data"`
	}
	if status, text := a.do(http.MethodGet, "/api/v1/targets", ""); status != http.StatusOK || json.Unmarshal([]byte(text), &targets) != nil {
		return fmt.Errorf("Prometheus' targets: %d %.500s", status, text)
	}
	if n := len(targets.Data.Active); n != want {
		return fmt.Errorf("Prometheus has %d targets, want %d", n, want)
	}
	for _, x := range targets.Data.Active {
		if x.Health != "up" {
			return fmt.Errorf("Prometheus' target %s is %s: %s", x.URL, x.Health, x.LastError)
		}
	}
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct {
					Name      string `json:"name"`
					Health    string `json:"health"`
					LastError string `json:"lastError"`
				} `json:"rules"`
			} `json:"groups"`
		} `json:"data"`
	}
	if status, text := a.do(http.MethodGet, "/api/v1/rules", ""); status != http.StatusOK || json.Unmarshal([]byte(text), &rules) != nil {
		return fmt.Errorf("Prometheus' rules: %d %.500s", status, text)
	}
	evaluated := 0
	for _, g := range rules.Data.Groups {
		for _, r := range g.Rules {
			if r.Health != "ok" {
				return fmt.Errorf("rule %s is %s: %s", r.Name, r.Health, r.LastError)
			}
			evaluated++
		}
	}
	if evaluated < 10 {
		return fmt.Errorf("Prometheus has only %d rules", evaluated)
	}
	return nil
}

// check fails the test on an error.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

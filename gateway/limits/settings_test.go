package limits_test

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/protocols/fault"
)

func read(t testing.TB, text string) (limits.Settings, error) {
	t.Helper()
	var s limits.Settings
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&s); !errors.Is(err, io.EOF) { // an empty text is one without settings
		return s, err
	}
	return s, nil
}

func mustRead(t testing.TB, text string) limits.Settings {
	t.Helper()
	s, err := read(t, text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func registry(t testing.TB, text string) *limits.Registry {
	t.Helper()
	r, err := limits.New(limits.Deps{}, mustRead(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestATableHasTheDefaultsButForWhatItSays(t *testing.T) {
	r := registry(t, `
defaults: {samples_per_second: 50k, bytes_per_second: 10MiB, query_range: 30d, label_value_bytes: 4KiB}
tables:
  big: {samples_per_second: 2M, query_range: 0, dry_run: true}
`)
	small, big := r.Table("small").Values(), r.Table("big").Values()
	if small.SamplesPerSecond != 50_000 || small.BytesPerSecond != 10<<20 || time.Duration(small.QueryRange) != 30*24*time.Hour ||
		small.LabelsPerSeries != 64 || small.LabelNameBytes != 1024 || small.LabelValueBytes != 4096 || small.DryRun {
		t.Errorf("small %+v", small)
	}
	if big.SamplesPerSecond != 2_000_000 || big.BytesPerSecond != 10<<20 || big.QueryRange != 0 || !big.DryRun {
		t.Errorf("big %+v", big)
	}
}

// TestEveryKeyOfASetHasItsValue guards the two structs against growing apart: they belong together by names.
func TestEveryKeyOfASetHasItsValue(t *testing.T) {
	set, values := reflect.TypeFor[limits.Set](), reflect.TypeFor[limits.Values]()
	if set.NumField() != values.NumField() {
		t.Errorf("%d keys, %d values", set.NumField(), values.NumField())
	}
	for i := range set.NumField() {
		f := set.Field(i)
		v, ok := values.FieldByName(f.Name)
		if !ok || f.Type != reflect.PointerTo(v.Type) {
			t.Errorf("%s: %v and %v", f.Name, f.Type, v.Type)
		}
		if f.Tag.Get("yaml") == "" {
			t.Errorf("%s has no key", f.Name)
		}
	}
}

func TestReadingReportsEveryMistake(t *testing.T) {
	_, err := read(t, `
defaults:
  samples_per_second: many
  sampels_burst: 3
  request_bytes: -1
  past_max: yesterday
tables:
  a: {active_series: 1.5, label_value_bytes: 8EiB}
`)
	if err == nil {
		t.Fatal("read")
	}
	for _, want := range []string{`line 3: "many" is no number`, "line 4: field sampels_burst not found", `line 5: "-1" is no size`, `line 6: "yesterday" is no time`, `line 8: "1.5" is no number`, `line 8: "8EiB" is no size`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in\n%v", want, err)
		}
	}
}

func TestValidateReportsEveryMistake(t *testing.T) {
	s := mustRead(t, `
gateways: -1
remote_write_status: 418
defaults: {samples_burst: 5}
tables:
  "no/name": {labels_per_series: 1000}
  b: {label_value_bytes: 1MiB, label_name_bytes: 2KiB}
`)
	err := s.Validate()
	if !fault.Is(err, fault.Invalid) {
		t.Fatal(err)
	}
	for _, want := range []string{"limits.gateways -1", "remote_write_status 418", "limits.defaults.samples_burst is set, but samples_per_second is not", `"no/name"`, "limits.tables.no/name.labels_per_series 1000", "limits.tables.b.label_value_bytes 1048576", "limits.tables.b.label_name_bytes 2048"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in\n%v", want, err)
		}
	}
	if err := (limits.Settings{}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestSeveralGatewaysShareWhatAddsUp(t *testing.T) {
	v := registry(t, `
gateways: 3
defaults: {samples_per_second: 100, active_series: 10, request_bytes: 1MiB, query_series: 10, query_concurrency: 1}
`).Table("x").Values()
	if v.SamplesPerSecond != 34 || v.ActiveSeries != 4 || v.QueryConcurrency != 1 {
		t.Errorf("what adds up: %+v", v)
	}
	if v.RequestBytes != 1<<20 || v.QuerySeries != 10 {
		t.Errorf("what one request may have: %+v", v)
	}
}

func TestSettingsAreWrittenAsTheyAreRead(t *testing.T) {
	s := mustRead(t, "defaults: {past_max: 36h, samples_per_second: 5k}\ntables: {a: {bytes_per_second: 1MiB}}")
	s.SetDefaults()
	text, err := yaml.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if again := mustRead(t, string(text)); !reflect.DeepEqual(again, s) {
		t.Errorf("%+v became\n%s", s, text)
	}
}

// TestTheLargestNumberRefusesNothing: the largest number, written for "no limit", is no limit, however many gateways share
// it.
func TestTheLargestNumberRefusesNothing(t *testing.T) {
	const most = "9223372036854775807"
	for _, gateways := range []string{"1", "2", "3", most} {
		r := registry(t, "gateways: "+gateways+"\ndefaults: {query_concurrency: "+most+", request_concurrency: "+most+", active_series: "+most+
			", samples_per_second: "+most+", bytes_per_second: "+most+", request_bytes: "+most+"}")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		leave, err := enter(r, ctx, "hosts")
		if err != nil {
			t.Fatalf("%s gateways: %v", gateways, err)
		}
		leave()
		cancel()
		if v := r.Table("hosts").Values(); v.ActiveSeries <= 0 || v.RequestConcurrency <= 0 || v.QueryConcurrency <= 0 || v.SamplesPerSecond <= 0 || v.BytesPerSecond <= 0 {
			t.Errorf("%s gateways: %+v", gateways, v)
		}
		if gateways == most {
			continue // one sample a second each
		}
		for range 10 {
			if err := write(r, "hosts", 1000, 1000); err != nil {
				t.Errorf("%s gateways: %v", gateways, err)
			}
		}
	}
}

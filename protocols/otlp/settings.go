package otlp

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/otlptranslator"
)

// Translation is the treatment of names that Prometheus' classic data model cannot hold, such as http.server.duration.
type Translation string

// The four ways, named as in Prometheus' configuration.
const (
	// UnderscoreEscapingWithSuffixes makes http_server_duration_seconds: dots to underscores, unit and _total added.
	UnderscoreEscapingWithSuffixes Translation = "UnderscoreEscapingWithSuffixes"
	// UnderscoreEscapingWithoutSuffixes makes http_server_duration.
	UnderscoreEscapingWithoutSuffixes Translation = "UnderscoreEscapingWithoutSuffixes"
	// NoUTF8EscapingWithSuffixes makes http.server.duration_seconds.
	NoUTF8EscapingWithSuffixes Translation = "NoUTF8EscapingWithSuffixes"
	// NoTranslation leaves it alone. Two metrics that differ only in unit or type become one.
	NoTranslation Translation = "NoTranslation"
)

// DeltaPolicy is the treatment of sums and histograms of delta temporality, which start at zero with each export.
type DeltaPolicy string

const (
	// DeltaRefuse refuses them with a reason that names the setting of the sender. It is the default: every SDK can be
	// configured to export cumulative values, which survive lost exports and our restarts.
	DeltaRefuse DeltaPolicy = "refuse"
	// DeltaConvert adds them up in a Deltas. The price: sums live in one gateway and begin again when it restarts, so all
	// exports of a series must reach the same one; native histograms are refused.
	DeltaConvert DeltaPolicy = "convert"
	// DeltaKeep stores the deltas as they came, as metrics of unknown type, for sum_over_time. Prometheus does that
	// under its feature otlp-native-delta-ingestion.
	DeltaKeep DeltaPolicy = "keep"
)

// Settings are the user's choices. Zero means the default, which is Prometheus'.
type Settings struct {
	// Translation of metric and label names. Default UnderscoreEscapingWithSuffixes.
	Translation Translation
	// PromoteResourceAttributes are attributes of the resource that become labels of each of its series. Default none.
	// Each that differs between restarts (process.pid) makes all series new.
	PromoteResourceAttributes []string
	// PromoteAllResourceAttributes promotes all but IgnoreResourceAttributes. Default false.
	PromoteAllResourceAttributes bool
	// IgnoreResourceAttributes are not promoted by PromoteAllResourceAttributes, and may not be set without it.
	IgnoreResourceAttributes []string
	// KeepIdentifyingResourceAttributes also keeps service.name, service.namespace and service.instance.id as labels of
	// target_info, where job and instance say the same. Default false.
	KeepIdentifyingResourceAttributes bool
	// PromoteScopeMetadata gives each series the labels otel_scope_name, _version, _schema_url and otel_scope_<attribute>.
	// Default false.
	PromoteScopeMetadata bool
	// ConvertHistogramsToNHCB turns histograms with explicit bounds into native histograms with custom buckets: one series
	// instead of one a bucket. Default false.
	ConvertHistogramsToNHCB bool
	// DisableTargetInfo makes no target_info. Default false.
	DisableTargetInfo bool
	// TargetInfoInterval is the distance of target_info samples where a request spans more time than that. Default
	// 2m30s, half of PromQL's look-back, so that joins always find one.
	TargetInfoInterval time.Duration
	// Delta is the treatment of delta temporality. Default DeltaRefuse.
	Delta DeltaPolicy
}

// TargetInfoIntervalDefault is half of PromQL's look-back delta.
const TargetInfoIntervalDefault = 150 * time.Second

// SetDefaults gives fields that are zero their defaults.
func (s *Settings) SetDefaults() {
	if s.Translation == "" {
		s.Translation = UnderscoreEscapingWithSuffixes
	}
	if s.Delta == "" {
		s.Delta = DeltaRefuse
	}
	if s.TargetInfoInterval == 0 {
		s.TargetInfoInterval = TargetInfoIntervalDefault
	}
}

// Validate reports every mistake at once. Zero values are none: they become defaults.
func (s Settings) Validate() error {
	s.SetDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch s.Translation {
	case UnderscoreEscapingWithSuffixes, UnderscoreEscapingWithoutSuffixes, NoUTF8EscapingWithSuffixes, NoTranslation:
	default:
		bad("Translation %q is none of %s, %s, %s, %s", s.Translation,
			UnderscoreEscapingWithSuffixes, UnderscoreEscapingWithoutSuffixes, NoUTF8EscapingWithSuffixes, NoTranslation)
	}
	switch s.Delta {
	case DeltaRefuse, DeltaConvert, DeltaKeep:
	default:
		bad("Delta %q is none of %s, %s, %s", s.Delta, DeltaRefuse, DeltaConvert, DeltaKeep)
	}
	if s.PromoteAllResourceAttributes && len(s.PromoteResourceAttributes) > 0 {
		bad("PromoteResourceAttributes and PromoteAllResourceAttributes exclude each other")
	}
	if !s.PromoteAllResourceAttributes && len(s.IgnoreResourceAttributes) > 0 {
		bad("IgnoreResourceAttributes needs PromoteAllResourceAttributes")
	}
	if s.TargetInfoInterval < time.Second {
		bad("TargetInfoInterval %v is shorter than 1s", s.TargetInfoInterval)
	}
	return errors.Join(errs...)
}

// Translator is prepared Settings: immutable, shared by all decoders of a process.
type Translator struct {
	settings Settings
	metrics  otlptranslator.MetricNamer
	units    otlptranslator.UnitNamer
	labels   otlptranslator.LabelNamer
	listed   map[string]struct{} // attributes to promote, or not to

	// mark is part of every hash, so that decoders of different settings may share a Dict.
	mark [16]byte
}

// NewTranslator checks the settings and makes them ready. The error lists every mistake.
func NewTranslator(s Settings) (*Translator, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s.SetDefaults()
	way := otlptranslator.TranslationStrategyOption(s.Translation)
	utf8 := !way.ShouldEscape()
	t := &Translator{
		settings: s,
		metrics:  otlptranslator.MetricNamer{WithMetricSuffixes: way.ShouldAddSuffixes(), UTF8Allowed: utf8},
		labels:   otlptranslator.LabelNamer{UTF8Allowed: utf8},
		listed:   map[string]struct{}{},
	}
	names := s.PromoteResourceAttributes
	if s.PromoteAllResourceAttributes {
		names = s.IgnoreResourceAttributes
	}
	for _, name := range names {
		t.listed[name] = struct{}{}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%#v", s))
	copy(t.mark[:], sum[:])
	return t, nil
}

// promotes reports whether an attribute of the resource becomes a label of each series.
func (t *Translator) promotes(key []byte) bool {
	_, listed := t.listed[string(key)]
	return listed != t.settings.PromoteAllResourceAttributes
}

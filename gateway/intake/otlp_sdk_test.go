package intake_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	instrument "go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// sdkMeters gives instruments of OpenTelemetry's own SDK that export to a table of f, and a function that sends all their
// counts.
func sdkMeters(t *testing.T, f *front, table string, temporality metricdata.Temporality) (instrument.Meter, func(context.Context) error) {
	t.Helper()
	exporter, err := otlpmetrichttp.New(t.Context(),
		otlpmetrichttp.WithEndpointURL("http://"+f.addr+"/t/"+table+"/v1/metrics"),
		otlpmetrichttp.WithCompression(otlpmetrichttp.GzipCompression),
		otlpmetrichttp.WithTemporalitySelector(func(sdk.InstrumentKind) metricdata.Temporality { return temporality }),
		otlpmetrichttp.WithRetry(otlpmetrichttp.RetryConfig{Enabled: true, InitialInterval: 10 * time.Millisecond, MaxInterval: time.Second, MaxElapsedTime: time.Minute}))
	if err != nil {
		t.Fatal(err)
	}
	provider := sdk.NewMeterProvider(
		sdk.WithReader(sdk.NewPeriodicReader(exporter, sdk.WithInterval(time.Hour))),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.namespace", "shop"), attribute.String("service.name", "cart"),
			attribute.String("service.instance.id", "cart-7"), attribute.String("host.name", "n1"))),
		sdk.WithView(sdk.NewView(sdk.Instrument{Name: "payload.size"}, sdk.Stream{Aggregation: sdk.AggregationBase2ExponentialHistogram{MaxSize: 160, MaxScale: 20}})))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil && temporality == metricdata.CumulativeTemporality {
			t.Error(err)
		}
	})
	return provider.Meter("test"), provider.ForceFlush
}

func TestTheSDKOfOpenTelemetryIsUnderstood(t *testing.T) {
	f := start(t)
	meter, flush := sdkMeters(t, f, "sdk", metricdata.CumulativeTemporality)
	requests, err := meter.Int64Counter("http.requests", instrument.WithUnit("{request}"))
	if err != nil {
		t.Fatal(err)
	}
	temperature, err := meter.Float64Gauge("room.temperature", instrument.WithUnit("Cel"))
	if err != nil {
		t.Fatal(err)
	}
	duration, err := meter.Float64Histogram("http.duration", instrument.WithUnit("s"), instrument.WithExplicitBucketBoundaries(0.1, 1))
	if err != nil {
		t.Fatal(err)
	}
	size, err := meter.Int64Histogram("payload.size", instrument.WithUnit("By"))
	if err != nil {
		t.Fatal(err)
	}
	route := instrument.WithAttributes(attribute.String("http.route", "/cart"))
	requests.Add(t.Context(), 3, route)
	temperature.Record(t.Context(), 21.5)
	for _, v := range []float64{0.05, 0.5, 0.5, 5} {
		duration.Record(t.Context(), v, route)
		size.Record(t.Context(), int64(v*1000))
	}
	if err := flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := f.memory.table("sdk").dump()
	for _, want := range []string{
		`{__name__="http_requests_total", http_route="/cart", instance="cart-7", job="shop/cart"} 3 @`,
		`{__name__="room_temperature_celsius", instance="cart-7", job="shop/cart"} 21.5 @`,
		`{__name__="http_duration_seconds_bucket", http_route="/cart", instance="cart-7", job="shop/cart", le="0.1"} 1 @`,
		`{__name__="http_duration_seconds_bucket", http_route="/cart", instance="cart-7", job="shop/cart", le="1"} 3 @`,
		`{__name__="http_duration_seconds_bucket", http_route="/cart", instance="cart-7", job="shop/cart", le="+Inf"} 4 @`,
		`{__name__="http_duration_seconds_count", http_route="/cart", instance="cart-7", job="shop/cart"} 4 @`,
		`{__name__="http_duration_seconds_sum", http_route="/cart", instance="cart-7", job="shop/cart"} 6.05 @`,
		`{__name__="target_info", host_name="n1", instance="cart-7", job="shop/cart"} 1 @`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if n := f.memory.table("sdk").hists; n != 1 {
		t.Errorf("%d native histograms", n)
	}
}

// The SDK reports a partial success to its user, and sends again after 503.
func TestTheSDKUnderstandsOurAnswers(t *testing.T) {
	f := start(t)
	meter, flush := sdkMeters(t, f, "delta", metricdata.DeltaTemporality)
	requests, err := meter.Int64Counter("http.requests")
	if err != nil {
		t.Fatal(err)
	}
	requests.Add(t.Context(), 3)
	if err := flush(t.Context()); err == nil || !strings.Contains(err.Error(), "delta temporality is not taken here") {
		t.Errorf("the SDK says %v", err)
	}

	meter, flush = sdkMeters(t, f, "retry", metricdata.CumulativeTemporality)
	if requests, err = meter.Int64Counter("http.requests"); err != nil {
		t.Fatal(err)
	}
	requests.Add(t.Context(), 4)
	f.memory.table("retry").fail(fault.Errorf(fault.Internal, "once"))
	again := time.AfterFunc(300*time.Millisecond, func() { f.memory.table("retry").fail(nil) })
	defer again.Stop()
	if err := flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.memory.table("retry").dump(); !strings.Contains(got, `{__name__="http_requests_total", instance="cart-7", job="shop/cart"} 4 @`) {
		t.Errorf("stored %s", got)
	}
}

"""Sends the readings of a few hosts by one client library, as its documentation shows: client.py LIBRARY URL START.

START is the time of the first reading in seconds. What a library says of names, health and refusals is asserted here; the values that
arrived are compared by the test, which knows the same readings. What a library reads back is printed as JSON.
"""

import json
import sys
from urllib.parse import urlparse

library, url, start = sys.argv[1], sys.argv[2], int(sys.argv[3])
host, port = urlparse(url).hostname, urlparse(url).port
table = library

READINGS = [(h, n) for n in range(20) for h in range(3)]


def nanos(n):
    return (start + 10 * n) * 10**9 + 7_000_000


def fields(h, n):
    return {"load": n + h / 4, "count": n * 1000 - h, "on": (n + h) % 3 > 0, "note": 'says "%d"' % n}


def refused(f, *words):
    """Expects that f raises, in words that name what is wrong."""
    try:
        f()
    except Exception as e:  # each library has its own
        text = str(e)
        missing = [w for w in words if w not in text]
        assert not missing, "the error %r lacks %r" % (text, missing)
        return
    raise AssertionError("nothing was refused")


BAD = "odd,host=a good=1 %d\nodd,host=a bad=4x %d\n" % (nanos(0), nanos(0))


def influxdb():
    from influxdb import InfluxDBClient

    c = InfluxDBClient(host, port, "any", "any", database=table)
    assert c.ping()
    c.create_database(table)
    assert {"name": table} in c.get_list_database(), c.get_list_database()
    assert c.write_points(
        [{"measurement": "fleet", "tags": {"host": "h%d" % h}, "time": nanos(n), "fields": fields(h, n)} for h, n in READINGS], batch_size=7
    )
    assert {"name": "fleet_load"} in c.get_list_measurements(), c.get_list_measurements()
    assert c.get_list_retention_policies(table)[0]["default"]
    refused(lambda: c.write_points(BAD, protocol="line"), "partial write", "4x")
    refused(lambda: c.query('SELECT mean("load") FROM "fleet" GROUP BY time(1m)'), "avg_over_time(fleet_load[1m])")
    c.alter_retention_policy("autogen", table, duration="30d")
    assert c.get_list_retention_policies(table)[0]["duration"] == "720h0m0s"
    c.write_points([{"measurement": "gone", "time": nanos(0), "fields": {"value": 1.5}}])
    c.drop_measurement("gone")
    c.create_database("made-and-dropped")
    c.drop_database("made-and-dropped")
    assert {"name": "made-and-dropped"} not in c.get_list_database()


def influxdb_client_sync():
    from influxdb_client import InfluxDBClient, Point
    from influxdb_client.client.write_api import SYNCHRONOUS

    with InfluxDBClient(url, token="any", org="any") as c:
        assert c.ping() and c.health().status == "pass" and c.ready().status == "ready"
        buckets = c.buckets_api()
        made = buckets.create_bucket(bucket_name=table, org="any", retention_rules={"type": "expire", "everySeconds": 30 * 86400})
        assert made.retention_rules[0].every_seconds == 30 * 86400
        assert buckets.find_bucket_by_name(table).id == made.id
        w = c.write_api(write_options=SYNCHRONOUS)
        w.write(table, record=[point(Point, h, n) for h, n in READINGS])
        refused(lambda: w.write(table, record=BAD), "422", "partial write", "4x")
        refused(lambda: c.query_api().query('from(bucket: "%s") |> range(start: -1h)' % table), "ask in PromQL")
        w.write(table, record="gone value=1.5 %d" % nanos(0))
        c.delete_api().delete("1970-01-01T00:00:00Z", "2100-01-01T00:00:00Z", '_measurement="gone"', table, "any")


def point(Point, h, n):
    p = Point("fleet").tag("host", "h%d" % h).time(nanos(n))
    for name, value in fields(h, n).items():
        p = p.field(name, value)
    return p


def influxdb_client_batch():
    from influxdb_client import InfluxDBClient, Point, WriteOptions

    failed = []
    with InfluxDBClient(url, token="any", org="any", enable_gzip=True) as c:
        with c.write_api(WriteOptions(batch_size=7, flush_interval=100), error_callback=lambda conf, data, e: failed.append(str(e))) as w:
            for h, n in READINGS:
                w.write(table, record=point(Point, h, n))
        assert not failed, failed
        with c.write_api(WriteOptions(batch_size=7, flush_interval=100), error_callback=lambda conf, data, e: failed.append(str(e))) as w:
            w.write(table, record=BAD.splitlines())
        assert len(failed) == 1 and "4x" in failed[0], failed


def influxdb3(**options):
    from influxdb_client_3 import InfluxDBClient3, Point, WriteOptions, WriteType, write_client_options

    options = WriteOptions(write_type=WriteType.synchronous, **options)
    with InfluxDBClient3(url, token="any", database=table, write_client_options=write_client_options(write_options=options)) as c:
        c.write([point(Point, h, n) for h, n in READINGS])
        refused(lambda: c.write(BAD), "4x")


def remote_write():
    from prometheus_remote_writer import RemoteWriter

    series = {}
    for h, n in READINGS:
        for name, value in fields(h, n).items():
            if name != "note":
                s = series.setdefault((name, h), {"metric": {"__name__": "fleet_" + name, "host": "h%d" % h}, "values": [], "timestamps": []})
                s["values"].append(float(value))
                s["timestamps"].append(nanos(n) // 10**6)
    w = RemoteWriter(url + "/t/" + table + "/api/v1/write")
    assert w.send(list(series.values())).samples_sent == 3 * len(READINGS)


def opentelemetry():
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.metrics import Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    exporter = OTLPMetricExporter(url + "/t/" + table + "/v1/metrics", compression=Compression.Gzip)
    resource = Resource({"service.name": "shop", "service.instance.id": "one"})
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)], resource)
    meter = provider.get_meter("fleet")
    meter.create_counter("jobs").add(5, {"queue": "a b"})
    meter.create_up_down_counter("waiting").add(-2)
    meter.create_histogram("latency", unit="s", explicit_bucket_boundaries_advisory=[0.1, 1]).record(0.25)
    meter.create_observable_gauge("room.temperature", [lambda _: [Observation(21.5)]], unit="Cel")
    assert provider.force_flush()
    provider.shutdown()


def exposition():
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
    from prometheus_client.openmetrics.exposition import generate_latest

    disable_created_metrics()
    r = CollectorRegistry()
    Counter("jobs", "Jobs.", ["queue"], registry=r).labels("a b").inc(5)
    Gauge("waiting", "Jobs that wait.", registry=r).set(-2)
    Histogram("latency_seconds", "Time.", buckets=[0.1, 1], registry=r).observe(0.25)
    sys.stdout.buffer.write(generate_latest(r))


def read():
    """Prints the readings as prometheus-api-client reads them from the table fleet."""
    from datetime import datetime, timezone

    from prometheus_api_client import PrometheusConnect

    c = PrometheusConnect(url + "/t/fleet")
    assert c.check_prometheus_connection()
    assert "fleet_load" in c.all_metrics()
    assert c.get_label_values("host") == ["h0", "h1", "h2"]
    at = lambda s: datetime.fromtimestamp(s, timezone.utc)
    got = c.get_metric_range_data("fleet_load", start_time=at(start), end_time=at(start + 200))
    stepped = c.custom_query_range("fleet_load", at(start + 10), at(start + 200), "10s")
    print(json.dumps({"raw": got, "stepped": stepped}))


{
    "influxdb": influxdb,
    "influxdb-client": influxdb_client_sync,
    "influxdb-client-batch": influxdb_client_batch,
    "influxdb3-python": influxdb3,
    "influxdb3-python-v3": lambda: influxdb3(use_v2_api=False, no_sync=True),
    "prometheus-remote-writer": remote_write,
    "opentelemetry": opentelemetry,
    "prometheus-client": exposition,
    "prometheus-api-client": read,
}[library]()

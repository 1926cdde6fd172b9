// Sends the readings of a few hosts by one client library, as its documentation shows: client.mjs LIBRARY URL START.
//
// START is the time of the first reading in seconds. What a library says of names, health and refusals is asserted here; the values that
// arrived are compared by the test, which knows the same readings. What a library reads back is printed as JSON.
import assert from 'node:assert/strict'

const [library, url, startText] = process.argv.slice(2)
const start = Number(startText)
const table = library

const readings = []
for (let n = 0; n < 20; n++) for (let h = 0; h < 3; h++) readings.push([h, n])
const millis = (n) => (start + 10 * n) * 1000 + 7
const nanos = (n) => millis(n) + '000000'
const host = (h) => `h${h}`
const load = (h, n) => n + h / 4
const count = (h, n) => n * 1000 - h
const on = (h, n) => (n + h) % 3 > 0
const note = (n) => `says "${n}"`
const bad = [`odd,host=a good=1 ${nanos(0)}`, `odd,host=a bad=4x ${nanos(0)}`]

/** Expects that f fails, in words that name what is wrong. */
async function refused(f, ...words) {
  let text
  try {
    await f()
  } catch (e) {
    text = `${e} ${e.body ?? ''}`
  }
  assert.ok(text !== undefined, 'nothing was refused')
  for (const w of words) assert.ok(text.includes(w), `the error ${text} lacks ${w}`)
}

async function influx() {
  const { InfluxDB, FieldType } = await import('influx')
  const fields = { load: FieldType.FLOAT, count: FieldType.INTEGER, on: FieldType.BOOLEAN, note: FieldType.STRING }
  const at = new URL(url)
  const c = new InfluxDB({ host: at.hostname, port: Number(at.port), database: table, schema: [{ measurement: 'fleet', tags: ['host'], fields }] })
  assert.ok((await c.ping(5000))[0].online)
  await c.createDatabase(table)
  assert.ok((await c.getDatabaseNames()).includes(table))
  const points = readings.map(([h, n]) => ({
    measurement: 'fleet',
    tags: { host: host(h) },
    timestamp: nanos(n),
    fields: { load: load(h, n), count: count(h, n), on: on(h, n), note: note(n) },
  }))
  await c.writePoints(points, { precision: 'n' })
  assert.ok((await c.getMeasurements()).includes('fleet_load'))
  assert.ok((await c.getSeries()).includes('fleet_load,host=h0'))
  assert.equal((await c.showRetentionPolicies(table))[0].default, true)
  await refused(() => c.query('SELECT max("load") FROM "fleet" GROUP BY time(1m)'), 'max_over_time(fleet_load[1m])')
  await c.alterRetentionPolicy('autogen', { duration: '30d', replication: 1, database: table })
  assert.equal((await c.showRetentionPolicies(table))[0].duration, '720h0m0s')
  await c.createDatabase('made-and-dropped')
  await c.dropDatabase('made-and-dropped')
  assert.ok(!(await c.getDatabaseNames()).includes('made-and-dropped'))
}

async function influxdbClient() {
  const { InfluxDB, Point } = await import('@influxdata/influxdb-client')
  const c = new InfluxDB({ url, token: 'any' })
  const w = c.getWriteApi('any', table, 'ns', { gzipThreshold: 100, batchSize: 7 })
  for (const [h, n] of readings) {
    w.writePoint(new Point('fleet').tag('host', host(h)).floatField('load', load(h, n)).intField('count', count(h, n)).booleanField('on', on(h, n)).stringField('note', note(n)).timestamp(nanos(n)))
  }
  await w.close()
  const errors = []
  const v = c.getWriteApi('any', table, 'ns', { maxRetries: 0, writeFailed: (e) => void errors.push(`${e} ${e.body}`) })
  v.writeRecords(bad)
  await refused(() => v.close(), '4x')
  assert.equal(errors.length, 1)
  await refused(() => c.getQueryApi('any').collectRows('from(bucket: "x") |> range(start: -1h)'), 'ask in PromQL')
}

async function influxdb3(options) {
  const { InfluxDBClient, Point } = await import('@influxdata/influxdb3-client')
  const c = new InfluxDBClient({ host: url, token: 'any', database: table, writeOptions: options })
  const points = readings.map(([h, n]) =>
    Point.measurement('fleet').setTag('host', host(h)).setFloatField('load', load(h, n)).setIntegerField('count', count(h, n)).setBooleanField('on', on(h, n)).setStringField('note', note(n)).setTimestamp(nanos(n)),
  )
  await c.write(points)
  await refused(() => c.write(bad), '4x')
  await c.close()
}

async function remoteWrite() {
  const { pushTimeseries } = await import('prometheus-remote-write')
  const series = []
  for (const h of [0, 1, 2]) {
    for (const [name, value] of Object.entries({ load, count, on })) {
      const samples = readings.filter(([of]) => of === h).map(([, n]) => ({ value: Number(value(h, n)), timestamp: millis(n) }))
      series.push({ labels: { __name__: `fleet_${name}`, host: host(h) }, samples })
    }
  }
  const r = await pushTimeseries(series, { url: `${url}/t/${table}/api/v1/write`, fetch })
  assert.equal(r.status, 204, r.errorMessage)
}

async function openTelemetry(exporter, options) {
  const { MeterProvider, PeriodicExportingMetricReader } = await import('@opentelemetry/sdk-metrics')
  const { resourceFromAttributes } = await import('@opentelemetry/resources')
  const { OTLPMetricExporter } = await import(exporter)
  const errors = []
  const { diag, DiagLogLevel } = await import('@opentelemetry/api')
  diag.setLogger({ error: (m) => errors.push(m), warn: (m) => errors.push(m), info() {}, debug() {}, verbose() {} }, DiagLogLevel.WARN)
  const reader = new PeriodicExportingMetricReader({ exporter: new OTLPMetricExporter({ url: `${url}/t/${table}/v1/metrics`, ...options }), exportIntervalMillis: 3_600_000 })
  const provider = new MeterProvider({ resource: resourceFromAttributes({ 'service.name': 'shop', 'service.instance.id': 'one' }), readers: [reader] })
  const meter = provider.getMeter('fleet')
  meter.createCounter('jobs').add(5, { queue: 'a b' })
  meter.createUpDownCounter('waiting').add(-2)
  meter.createHistogram('latency', { unit: 's', advice: { explicitBucketBoundaries: [0.1, 1] } }).record(0.25)
  meter.createObservableGauge('room.temperature', { unit: 'Cel' }).addCallback((r) => r.observe(21.5))
  await provider.forceFlush()
  await provider.shutdown()
  assert.deepEqual(errors, [])
}

async function exposition() {
  const { default: prom } = await import('prom-client')
  const r = new prom.Registry()
  r.setContentType(prom.Registry.OPENMETRICS_CONTENT_TYPE)
  new prom.Counter({ name: 'jobs', help: 'Jobs.', labelNames: ['queue'], registers: [r] }).labels('a b').inc(5)
  new prom.Gauge({ name: 'waiting', help: 'Jobs that wait.', registers: [r] }).set(-2)
  new prom.Histogram({ name: 'latency_seconds', help: 'Time.', buckets: [0.1, 1], registers: [r] }).observe(0.25)
  process.stdout.write(await r.metrics())
}

/** Prints the readings as prometheus-query reads them from the table fleet. */
async function read() {
  const { PrometheusDriver } = await import('prometheus-query').then((m) => m.default ?? m)
  const c = new PrometheusDriver({ endpoint: `${url}/t/fleet` })
  assert.deepEqual(await c.labelValues('host'), ['h0', 'h1', 'h2'])
  assert.ok((await c.labelNames()).includes('host'))
  assert.equal((await c.series('fleet_load', start * 1000, (start + 200) * 1000)).length, 3)
  const json = (r) => r.result.map((s) => ({ metric: { __name__: s.metric.name, ...s.metric.labels }, values: s.values.map((v) => [v.time.getTime() / 1000, String(v.value)]) }))
  const stepped = json(await c.rangeQuery('fleet_load', (start + 10) * 1000, (start + 200) * 1000, '10s'))
  console.log(JSON.stringify({ stepped }))
}

await {
  influx,
  'influxdb-client': influxdbClient,
  'influxdb3-client': () => influxdb3({}),
  'influxdb3-client-v3': () => influxdb3({ useV2Api: false, noSync: true }),
  'prometheus-remote-write': remoteWrite,
  'opentelemetry-json': () => openTelemetry('@opentelemetry/exporter-metrics-otlp-http', {}),
  'opentelemetry-protobuf': () => openTelemetry('@opentelemetry/exporter-metrics-otlp-proto', { compression: 'gzip' }),
  'prom-client': exposition,
  'prometheus-query': read,
}[library]()

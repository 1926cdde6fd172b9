// The cardinality explorer: which names, labels and values make series.
import { get, ofTable, type Answer, type Labels } from './api';
import { brief, count, time, UNKNOWN } from './format';
import { Bar, Choice, Empty, Figure, Loading, Notice, Problem } from './parts';
import { sendersOf, useSenders, writers, WrittenBy, type Writers } from './senders';
import { alter, href, usePoll, useUTC } from './store';
import { useTableUse } from './tables';
import type { Status } from './types';

interface NameCount { name: string; value: number }

interface TSDB {
  headStats: { numSeries: number; numLabelPairs: number; chunkCount: number; minTime: number; maxTime: number };
  seriesCountByMetricName: NameCount[];
  labelValueCountByLabelName: NameCount[];
  memoryInBytesByLabelName: NameCount[];
  seriesCountByLabelValuePair: NameCount[];
}

const TOPS = ['20', '100', '1000'];

export function Cardinality({ table, status, params }: { table: string; status: Status; params: URLSearchParams }) {
  const utc = useUTC();
  const limit = TOPS.find((n) => n === params.get('top')) ?? TOPS[0];
  const { data, error } = usePoll<Answer<TSDB>>(`tsdb ${table} ${limit}`, 15, (signal) => get<TSDB>(ofTable(table, 'status/tsdb'), { limit }, signal));
  const uses = useTableUse();
  const use = uses.data?.data.find((u) => u.table === table);
  const metric = params.get('metric') ?? '';
  const senders = useSenders(table);
  const by = writers(sendersOf(senders, table));
  if (!data) return <main>{error ? <Problem error={error} /> : <section class="card"><Loading what="Counting" /></section>}</main>;
  const d = data.data;
  const h = d.headStats;
  const none = h.minTime > h.maxTime;
  return (
    <main>
      {error && <Problem error={error} />}
      {data.warnings.map((w) => <Notice kind="info" key={w}>{w}</Notice>)}
      <div class="card figures">
        <Figure label="series" value={count(h.numSeries)} id="series" />
        <Figure label="label pairs" value={count(h.numLabelPairs)} />
        <Figure label="active series" value={uses.data ? count(use?.activeSeries ?? 0) : UNKNOWN} />
        <Figure label="new series a minute" value={uses.data ? brief((use?.newSeriesPerSecond ?? 0) * 60) : UNKNOWN} id="new-series" note="mean of some 15 s" />
        <Figure label="oldest row" value={none ? '–' : time(h.minTime, utc).slice(0, 10)} />
        <Figure label="newest row" value={none ? '–' : time(h.maxTime, utc)} />
        <span class="grow" />
        <Choice label="How many" value={limit} options={TOPS.map((n, i) => [n, i === 0 ? `Top ${n}` : n])} onChange={(n) => alter({ top: n === TOPS[0] ? undefined : n })} />
      </div>
      {h.numSeries === 0 ? <section class="card"><Empty title={`Table ${table} has no series`}>The first write makes some.</Empty></section> : (
        <>
          {metric && <Metric key={metric} table={table} metric={metric} by={by.get(metric)} />}
          <div class="tops">
            <Top title="Series by name" id="by-name" rows={d.seriesCountByMetricName} whole={h.numSeries} link={(n) => href('cardinality', { table, metric: n, top: limit === TOPS[0] ? '' : limit })} chosen={metric} by={by} />
            <Top title="Series by label and value" rows={d.seriesCountByLabelValuePair} whole={h.numSeries} link={(n) => href('explore', { table, q: `count by (__name__) ({${pair(n)}})`, view: 'instant' })} />
            <Top title="Values by label" rows={d.labelValueCountByLabelName} link={(n) => href('explore', { table, q: `topk(20, count by (${plainLabel(n)}) ({${plainLabel(n)}!=""}))`, view: 'instant' })} />
            <Top title="Bytes of values by label" rows={d.memoryInBytesByLabelName} />
          </div>
          <WrittenBy table={table} polled={senders} role={status.role} />
        </>
      )}
    </main>
  );
}

const plainLabel = (n: string) => (/^[a-zA-Z_][a-zA-Z0-9_]*$/.test(n) ? n : JSON.stringify(n));

function pair(text: string): string {
  const at = text.indexOf('=');
  return `${plainLabel(text.slice(0, at))}=${JSON.stringify(text.slice(at + 1))}`;
}

interface TopProps { title: string; id?: string; rows: NameCount[]; whole?: number; link?: (name: string) => string; chosen?: string; by?: Map<string, Writers> }

function Top({ title, id, rows, whole, link, chosen, by }: TopProps) {
  const most = Math.max(1, ...rows.map((r) => r.value));
  return (
    <section class={'card top' + (by ? ' wide' : '')} id={id}>
      <h2>{title}{by && <span class="dim">written by</span>}</h2>
      <ol>
        {rows.map((r) => (
          <li key={r.name} class={r.name === chosen ? 'chosen' : ''}>
            <span class="top-bar" style={{ width: (100 * r.value) / most + '%' }} />
            {link ? <a href={link(r.name)} title={r.name}>{r.name}</a> : <span title={r.name}>{r.name}</span>}
            {by && <em title={by.get(r.name)?.title ?? 'No new series of this name has come since the start.'}>{by.get(r.name)?.text ?? <span class="unknown">unknown</span>}</em>}
            <b>{count(r.value)}</b>
            {whole ? <i class="dim">{((100 * r.value) / whole).toFixed(r.value / whole < 0.01 ? 2 : 0)} %</i> : null}
          </li>
        ))}
      </ol>
      {rows.length === 0 && <p class="dim">none</p>}
    </section>
  );
}

const SERIES = 5000;

/** Metric looks into one name: which of its labels make the series. */
function Metric({ table, metric, by }: { table: string; metric: string; by?: Writers }) {
  const { data, error } = usePoll<Answer<Labels[]>>(`series ${table} ${metric}`, 0, (signal) =>
    get<Labels[]>(ofTable(table, 'series'), { 'match[]': `{__name__=${JSON.stringify(metric)}}`, limit: String(SERIES) }, signal));
  const labels = new Map<string, Map<string, number>>();
  for (const s of data?.data ?? []) for (const [k, v] of Object.entries(s)) {
    if (k === '__name__') continue;
    const values = labels.get(k) ?? labels.set(k, new Map()).get(k)!;
    values.set(v, (values.get(v) ?? 0) + 1);
  }
  const sorted = [...labels].sort((a, b) => b[1].size - a[1].size);
  return (
    <section class="card" id="metric">
      <div class="toolbar"><h2><code>{metric}</code></h2>{data && <span class="dim">{count(data.data.length)}{data.data.length >= SERIES ? ' or more' : ''} series</span>}<span class="grow" />
        <a class="btn small" href={href('explore', { table, q: /^[a-zA-Z_:][a-zA-Z0-9_:]*$/.test(metric) ? metric : `{${JSON.stringify(metric)}}` })}>Explore</a>
        <button type="button" class="btn small" onClick={() => alter({ metric: undefined })}>Close</button></div>
      <dl class="by"><dt>new series</dt><dd id="metric-new">{by ? <>{brief(by.perMinute)} in the last minute<span class="dim"> · {count(by.newSeries)} since the start</span></> : <span class="unknown">unknown</span>}</dd>
        <dt>written by</dt><dd id="metric-by">{by ? by.title.split('\n').map((text) => <div key={text}>{text}</div>) : <span class="dim"><span class="unknown">unknown</span>: no new series of this name has come since the start</span>}</dd></dl>
      {error && <Problem error={error} />}
      {!data ? !error && <Loading what="Looking" /> : (
        <div class="scroll"><table>
          <thead><tr><th>label</th><th class="n">values</th><th class="share" /><th>most series</th></tr></thead>
          <tbody>{sorted.map(([name, values]) => (
            <tr key={name}><td><code>{name}</code></td><td class="n">{count(values.size)}</td><td class="share"><Bar share={values.size / Math.max(1, data.data.length)} /></td>
              <td class="values">{[...values].sort((a, b) => b[1] - a[1]).slice(0, 6).map(([v, n]) => <span key={v}><code>{v || '""'}</code> <span class="dim">{count(n)}</span></span>)}{values.size > 6 && <span class="dim">and {count(values.size - 6)} more</span>}</td></tr>
          ))}</tbody>
        </table></div>
      )}
    </section>
  );
}

// What happens now: rates, queries that run and that were slow, requests that were refused.
import { useMemo } from 'preact/hooks';
import { get, type Answer } from './api';
import { about, brief, bytes, count, perSecond, time, UNKNOWN } from './format';
import { ofAll, Scope, useAll } from './gateways';
import { colour, Plot, type PlotLine } from './plot';
import { Choice, Figure, Loading, Problem } from './parts';
import { PROTOCOLS } from './senders';
import { alter, href, usePoll, useUTC } from './store';
import { useTableUse } from './tables';
import type { Status } from './types';

interface Rates { table: string; samplesPerSecond: number[]; queriesPerSecond: number[]; refusedPerSecond: number[]; newSeriesPerSecond: number[] }
interface History { times: number[]; tables: Rates[] }
interface Query { table: string; query: string; kind: string; began: string; seconds: number; waits?: boolean; bytes: number; error?: string }
interface Queries { running: Query[]; ended: Query[] }
interface Pair { table: string; cluster: string; elected: string; silent_seconds: number; other?: string; other_silent_seconds?: number; agreed: boolean }
interface Refusal { table: string; protocol: string; status: number; reason: string; requests: number; first: string; last: string }

const PLOTTED = 12; // tables of their own line; the others are one

type Key = 'samplesPerSecond' | 'queriesPerSecond' | 'refusedPerSecond' | 'newSeriesPerSecond';

export function Activity({ table, status, params }: { table: string; status: Status; params: URLSearchParams }) {
  const of = params.get('of') === 'table' ? table : '';
  const only: Record<string, string> = of ? { table: of } : {};
  const rates = usePoll<Answer<History>>('rates ' + of, 10, (s) => get<History>('api/v1/status/rates', only, s));
  const queries = usePoll<Answer<Queries>>('queries ' + of, 2, (s) => get<Queries>('api/v1/status/queries', only, s));
  const refusals = usePoll<Answer<Refusal[]>>('refusals ' + of, 5, (s) => get<Refusal[]>('api/v1/status/refusals', only, s));
  const uses = useTableUse();
  const now = (uses.data?.data ?? []).filter((u) => !of || u.table === of);
  const sum = (f: (u: (typeof now)[number]) => number) => (uses.data ? now.reduce((n, u) => n + f(u), 0) : null);
  const limited = now.reduce((n, u) => n + Object.values(u.refusedPerSecond).reduce((a, v) => a + v, 0), 0);
  const all = useAll(status, of);
  return (
    <main>
      <div class="card figures">
        <Figure label="samples" value={perSecond(sum((u) => u.samplesPerSecond))} id="samples" note={ofAll(all, all?.samples, perSecond)} />
        <Figure label="bodies" value={sum(() => 0) === null ? UNKNOWN : bytes(sum((u) => u.bytesPerSecond)) + '/s'} note={ofAll(all, all?.bytes, (v) => bytes(v) + '/s')} />
        <Figure label="new series a minute" value={sum(() => 0) === null ? UNKNOWN : brief(sum((u) => u.newSeriesPerSecond * 60))} note={ofAll(all, all?.newSeries, (v) => brief(v * 60))} />
        <Figure label="queries" value={perSecond(sum((u) => u.queriesPerSecond))} note={ofAll(all, all?.queries, perSecond)} />
        <Figure label="queries that run" value={queries.data ? count(queries.data.data.running.length) : UNKNOWN} id="running" />
        <Figure label="refused by limits" value={uses.data ? perSecond(limited) : UNKNOWN} note={ofAll(all, all?.refused, perSecond)} />
        <span class="grow" />
        <Choice label="Which tables" value={of ? 'table' : 'all'} options={[['all', 'All tables'], ['table', table]]} onChange={(v) => alter({ of: v === 'table' ? 'table' : undefined })} />
      </div>
      <Scope all={all} what="Figures, plots and lists" />
      {rates.error && !rates.data && <Problem error={rates.error} />}
      <div class="plots">
        <RatePlot title="Samples a second" of={rates.data?.data} field="samplesPerSecond" />
        <RatePlot title="Queries a second" of={rates.data?.data} field="queriesPerSecond" />
        <RatePlot title="New series a minute" of={rates.data?.data} field="newSeriesPerSecond" by={60} />
        <RatePlot title="Refused by limits a second" of={rates.data?.data} field="refusedPerSecond" />
      </div>
      <section class="card" id="running-queries">
        <h2>Queries that run</h2>
        {queries.error && !queries.data ? <Problem error={queries.error} /> : !queries.data ? <Loading what="Asking" /> : queries.data.data.running.length === 0 ? <p class="dim">None at this moment.</p> : <QueryTable rows={queries.data.data.running} running />}
      </section>
      <section class="card" id="slow-queries">
        <h2>Slow and failed queries</h2>
        {!queries.data ? !queries.error && <Loading what="Asking" /> : queries.data.data.ended.length === 0 ? <p class="dim">None since the start: no query took a second, and none failed.</p> : <QueryTable rows={queries.data.data.ended} />}
      </section>
      <section class="card" id="refusals">
        <h2>Refused writes</h2>
        {refusals.error && !refusals.data ? <Problem error={refusals.error} /> : !refusals.data ? <Loading what="Asking" /> : refusals.data.data.length === 0 ? <p class="dim">None since the start.</p> : <RefusalTable rows={refusals.data.data} />}
      </section>
      {status.whole && <Pairs of={of} />}
    </main>
  );
}

function RatePlot({ title, of, field, by = 1 }: { title: string; of?: History; field: Key; by?: number }) {
  const lines = useMemo<PlotLine[]>(() => {
    const all = (of?.tables ?? []).map((t, i) => ({ name: t.table, values: t[field].map((v) => v * by), i }));
    const busy = all.map((t) => ({ ...t, total: t.values.reduce((a, v) => a + v, 0) })).sort((a, b) => b.total - a.total || a.i - b.i);
    const shown = busy.slice(0, PLOTTED).filter((t, i) => t.total > 0 || i === 0);
    const rest = busy.slice(PLOTTED).filter((t) => t.total > 0);
    const out: PlotLine[] = shown.sort((a, b) => a.i - b.i).map((t) => ({ label: t.name, colour: colour(t.i), values: t.values }));
    if (rest.length > 0) out.push({ label: `${rest.length} other tables`, colour: '#8899a6', values: rest[0].values.map((_, i) => rest.reduce((a, t) => a + t.values[i], 0)) });
    return out;
  }, [of, field, by]);
  const quiet = lines.every((l) => l.values.every((v) => !v));
  return (
    <section class="card small-plot">
      <h2>{title}</h2>
      {!of ? <Loading what="Asking" /> : of.times.length < 2 ? <p class="dim quiet">Rates are kept every ten seconds; there is nothing yet.</p>
        : quiet ? <p class="dim quiet">0 in the last {about(of.times[of.times.length - 1] - of.times[0])}</p>
        : <Plot times={of.times} lines={lines} height={150} label={title} range={[of.times[0], of.times[of.times.length - 1]]} area={lines.length < 4} />}
      {!quiet && <p class="keys">{lines.map((l) => <span key={l.label}><i class="dot" style={{ background: l.colour }} /> {l.label}</span>)}</p>}
    </section>
  );
}

const SHOWN = 50;

function QueryTable({ rows, running }: { rows: Query[]; running?: boolean }) {
  const utc = useUTC();
  return (
    <div class="scroll"><table class="queries-table">
      <thead><tr><th>{running ? 'began' : 'ended'}</th><th class="n">{running ? 'for' : 'took'}</th><th class="n">memory</th><th>table</th><th>query</th></tr></thead>
      <tbody>{rows.slice(0, SHOWN).map((q, i) => (
        <tr key={q.began + i}>
          <td class="t">{time(Date.parse(q.began) + (running ? 0 : q.seconds * 1000), utc).slice(0, 19)}</td>
          <td class="n">{about(q.seconds)}{q.waits && <div class="dim">waits</div>}</td>
          <td class="n">{bytes(q.bytes)}</td><td>{q.table}</td>
          <td class="text"><a href={href('explore', { table: q.table, q: q.query, view: q.kind === 'instant' ? 'instant' : '' })}><code>{q.query}</code></a>{q.error && <div class="bad-text">{q.error}</div>}</td>
        </tr>
      ))}</tbody>
    </table></div>
  );
}

function RefusalTable({ rows }: { rows: Refusal[] }) {
  const utc = useUTC();
  return (
    <div class="scroll"><table>
      <thead><tr><th>last</th><th class="n">requests</th><th>table</th><th>protocol</th><th class="n">answer</th><th>reason of the last</th></tr></thead>
      <tbody>{rows.slice(0, SHOWN).map((r) => (
        <tr key={r.first + r.table + r.protocol + r.status + r.reason}>
          <td class="t">{time(Date.parse(r.last), utc).slice(0, 19)}</td><td class="n">{count(r.requests)}</td><td>{r.table || <span class="dim">none named</span>}</td>
          <td class="t">{PROTOCOLS[r.protocol] ?? r.protocol}</td><td class="n">{r.status < 300 ? 'in part' : r.status}</td><td class="text">{r.reason}</td>
        </tr>
      ))}</tbody>
    </table></div>
  );
}

/** Pairs shows which replica of each HA pair is elected; nothing where there are no pairs. */
function Pairs({ of }: { of: string }) {
  const pairs = usePoll<Answer<Pair[]>>('pairs', 5, (s) => get<Pair[]>('api/v1/status/ha', {}, s));
  const rows = (pairs.data?.data ?? []).filter((p) => !of || p.table === of);
  if (pairs.error && !pairs.data) return <section class="card" id="pairs"><h2>HA pairs</h2><Problem error={pairs.error} /></section>;
  if (rows.length === 0) return null;
  const since = (s: number | undefined) => (s === undefined ? UNKNOWN : s < 1 ? 'now' : `${about(s)} ago`);
  return (
    <section class="card" id="pairs">
      <h2>HA pairs</h2>
      <div class="scroll"><table>
        <thead><tr><th>table</th><th>cluster</th><th>elected replica</th><th class="n">its last row</th><th>other replica</th><th class="n">its last row</th><th>in the coordination store</th></tr></thead>
        <tbody>{rows.slice(0, SHOWN).map((p) => (
          <tr key={p.table + '/' + p.cluster} data-pair={p.cluster}>
            <td>{p.table}</td><td>{p.cluster}</td><td><b>{p.elected}</b></td><td class="n">{since(p.silent_seconds)}</td>
            <td>{p.other ?? <span class="dim">none has sent</span>}</td><td class="n">{p.other ? since(p.other_silent_seconds ?? 0) : ''}</td>
            <td>{p.agreed ? 'the same' : <b class="bad-text">not agreed yet</b>}</td>
          </tr>
        ))}</tbody>
      </table></div>
      {rows.length > SHOWN && <p class="dim">{count(rows.length - SHOWN)} more pairs.</p>}
    </section>
  );
}

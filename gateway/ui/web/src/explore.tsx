// The explorer: queries, a plot or tables of what they answer.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { base, get, ofTable, type Answer, type Labels, type QueryResult, type Sample, type Series } from './api';
import type { Editor } from './editor';
import { about, clock, count, date, duration, parseTime, seconds, series as seriesText, short, time } from './format';
import { COLOURS, colour, Plot, type Mark } from './plot';
import { Button, Choice, Empty, Icon, Loading, Menu, Notice, Problem } from './parts';
import { align, autoStep, common, csv, lines, number, steps, summary, type Line, type Range } from './result';
import { address, go, grafana, grafanaSource, href, reloads, useUTC, useValue, useVisible } from './store';

type View = 'graph' | 'table' | 'instant';

interface State {
  table: string;
  queries: { expr: string; off: boolean }[];
  from: string; // now-1h, or seconds
  to: string;
  step: string; // auto, or a duration
  view: View;
  every: number; // seconds; 0: not by itself
  exemplars: boolean;
}

const RANGES = ['5m', '15m', '1h', '3h', '6h', '12h', '1d', '2d', '7d', '30d', '90d', '1y'];

function fromAddress(p: URLSearchParams, table: string): State {
  const off = new Set((p.get('off') ?? '').split(',').filter(Boolean));
  const exprs = p.getAll('q');
  return {
    table,
    queries: (exprs.length ? exprs : ['']).map((expr, i) => ({ expr, off: off.has(String(i)) })),
    from: p.get('from') ?? 'now-1h', to: p.get('to') ?? 'now', step: p.get('step') ?? 'auto',
    view: (['graph', 'table', 'instant'] as const).find((v) => v === p.get('view')) ?? 'graph',
    every: Number(p.get('every') ?? '0') || 0, exemplars: p.get('exemplars') === '1',
  };
}

function toAddress(s: State): string {
  const off = s.queries.flatMap((q, i) => (q.off ? [i] : []));
  return href('explore', {
    table: s.table, q: s.queries.map((q) => q.expr), off: off.join(','), from: s.from === 'now-1h' ? '' : s.from, to: s.to === 'now' ? '' : s.to,
    step: s.step === 'auto' ? '' : s.step, view: s.view === 'graph' ? '' : s.view, every: s.every || '', exemplars: s.exemplars ? '1' : '',
  });
}

/** span gives the ends of a state's range in seconds. */
function span(s: State, utc: boolean): [number, number] {
  const now = Date.now() / 1000;
  const to = parseTime(s.to, utc, now);
  const from = parseTime(s.from, utc, now);
  return [from, to];
}

interface Outcome { answer?: Answer<QueryResult>; error?: Error }

interface Shown {
  view: View;
  range: Range;
  outcomes: Outcome[]; // by query
  lines: Line[];
  marks: { query: number; metric: Labels; time: number; value: number; labels: Labels }[];
  key: string;
}

export function Explore({ table }: { table: string }) {
  const { params } = useValue(address);
  const state = fromAddress(params, table);
  const utc = useUTC();
  const epoch = useValue(reloads);
  const visible = useVisible();
  // What is typed and not yet run lies with the editors: were it rendered back into them, an older text could overtake a newer.
  const drafts = useRef<(string | undefined)[]>([]);
  const [written, setWritten] = useState(0); // how often the page, not a person, wrote into the editors
  const [shown, setShown] = useState<Shown | null>(null);
  const [loading, setLoading] = useState(false);
  const [runs, setRuns] = useState(0);
  const text = params.toString();
  const latest = useRef(state);
  latest.current = state;

  const drafted = () => state.queries.map((q, i) => ({ ...q, expr: drafts.current[i] ?? q.expr }));
  const change = (part: Partial<State>, replace = false) => {
    const queries = part.queries ?? drafted();
    drafts.current = queries.map((q) => q.expr);
    setWritten((n) => n + 1);
    go(toAddress({ ...state, ...part, queries }), replace);
  };
  const run = () => {
    const next = toAddress({ ...state, queries: drafted() });
    if (next === location.hash) setRuns((n) => n + 1);
    else go(next);
  };

  const points = Math.min(700, Math.max(120, Math.floor(innerWidth / 2)));
  useEffect(() => {
    const s = latest.current;
    if (!visible || s.queries.every((q) => q.expr.trim() === '')) {
      if (visible) setShown(null);
      return;
    }
    const ended = new AbortController();
    let timer = 0;
    const once = async () => {
      setLoading(true);
      const done = await ask(s, utc, points, ended.signal);
      if (ended.signal.aborted) return;
      setLoading(false);
      setShown(done);
      if (s.every > 0) timer = window.setTimeout(once, s.every * 1000);
    };
    void once();
    return () => {
      ended.abort();
      clearTimeout(timer);
      setLoading(false);
    };
  }, [text, table, runs, epoch, visible]);

  const [from, to] = span(state, utc);
  const shift = (by: number) => {
    const width = to - from;
    change({ from: exact(from + by * width), to: exact(to + by * width) });
  };
  const zoomOut = () => {
    const width = to - from;
    change({ from: exact(from - width / 2), to: exact(Math.min(to + width / 2, Math.max(to, Date.now() / 1000))) });
  };
  const bad = !(from < to) ? 'The range must begin before it ends.' : state.step !== 'auto' && !(seconds(state.step) > 0) ? `The step ${state.step} is no duration, such as 15s or 5m.` : '';

  return (
    <main class="explore">
      <section class="card queries">
        {state.queries.map((q, i) => (
          <QueryRow key={i} index={i} table={table} expr={q.expr} written={written} off={q.off} only={state.queries.length === 1}
            onChange={(t) => { drafts.current[i] = t; }} onRun={run}
            onToggle={() => change({ queries: drafted().map((x, j) => (j === i ? { ...x, off: !x.off } : x)) })}
            onCopy={() => change({ queries: drafted().flatMap((x, j) => (j === i ? [x, { ...x }] : [x])) })}
            onRemove={() => change({ queries: drafted().filter((_, j) => j !== i) })} />
        ))}
        <div class="toolbar">
          <Button icon="plus" label="Add query" onClick={() => change({ queries: [...drafted(), { expr: '', off: false }] })} />
          <span class="grow" />
          <div class="joined">
            <Button icon="left" label="Earlier" bare onClick={() => shift(-0.5)} />
            <RangeMenu state={state} utc={utc} from={from} to={to} onChange={change} />
            <Button icon="right" label="Later" bare onClick={() => shift(0.5)} />
            <Button icon="out" label="Zoom out" bare onClick={zoomOut} />
          </div>
          <label class="field" title="Time between two values of a range: auto, or a duration such as 15s">
            <span>step</span>
            <StepInput value={state.step} auto={shown?.range.step} onChange={(step) => change({ step })} />
          </label>
          <label class="field"><span>refresh</span>
            <select value={String(state.every)} onChange={(e) => change({ every: Number(e.currentTarget.value) })}>
              {[0, 2, 5, 10, 30, 60, 300].map((s) => <option value={String(s)}>{s ? duration(s) : 'off'}</option>)}
            </select>
          </label>
          <Button primary label="Run" id="run" onClick={run} />
        </div>
      </section>

      <div class="viewbar">
        <Choice label="View" value={state.view} options={[['graph', 'Graph'], ['table', 'Table'], ['instant', 'Instant']]} onChange={(view) => change({ view })} />
        {state.view === 'graph' && <label class="check"><input type="checkbox" checked={state.exemplars} onChange={(e) => change({ exemplars: e.currentTarget.checked })} /> exemplars</label>}
        <span class="grow" />
        <span class="status dim" role="status">{loading ? <><span class="spin" /> asking</> : shown && describe(shown)}</span>
        <CopyLink />
        <GrafanaLink state={state} />
      </div>

      {bad && <Notice kind="bad">{bad}</Notice>}
      {shown?.outcomes.map((o, i) => <OutcomeNotices key={i} index={i} of={o} many={shown.outcomes.length > 1} />)}
      {shown ? <Result shown={shown} view={state.view} state={state} utc={utc} onZoom={(a, b) => change({ from: exact(a), to: exact(b) })} onReset={zoomOut} />
        : loading ? <section class="card"><Loading what="Asking" /></section>
        : <Start table={table} onPick={(expr) => go(toAddress({ ...state, queries: [{ expr, off: false }] }))} />}
    </main>
  );
}

const exact = (t: number) => String(Math.round(t * 1000) / 1000);

/** ask sends every query that is on, and gives what there is when all have answered. */
async function ask(s: State, utc: boolean, points: number, signal: AbortSignal): Promise<Shown> {
  const [from, to] = span(s, utc);
  const step = s.step === 'auto' ? autoStep(to - from, points) : seconds(s.step);
  const range = align(from, to, step);
  const key = [s.table, s.view, range.step, ...s.queries.map((q) => q.expr)].join('\n');
  if (!(from < to) || !(step > 0)) return { view: s.view, range: { start: 0, end: 1, step: 1 }, outcomes: [], lines: [], marks: [], key };
  const outcomes = await Promise.all(s.queries.map(async (q): Promise<Outcome> => {
    if (q.off || q.expr.trim() === '') return {};
    try {
      const answer = s.view === 'instant'
        ? await get<QueryResult>(ofTable(s.table, 'query'), { query: q.expr, time: exact(to) }, signal)
        : await get<QueryResult>(ofTable(s.table, 'query_range'), { query: q.expr, start: String(range.start), end: String(range.end), step: String(range.step) }, signal);
      return { answer };
    } catch (error) {
      return { error: error as Error };
    }
  }));
  const all = s.view === 'instant' ? [] : outcomes.flatMap((o, i) => (o.answer ? lines(o.answer.data, i, range) : []));
  const marks = s.exemplars && s.view === 'graph' ? await exemplars(s, range, outcomes, signal) : [];
  return { view: s.view, range, outcomes, lines: all, marks, key };
}

interface Exemplars { seriesLabels: Labels; exemplars: { labels: Labels; value: string; timestamp: number }[] }

async function exemplars(s: State, range: Range, outcomes: Outcome[], signal: AbortSignal): Promise<Shown['marks']> {
  const found = await Promise.all(s.queries.map(async (q, query) => {
    if (!outcomes[query].answer) return [];
    try {
      const { data } = await get<Exemplars[]>(ofTable(s.table, 'query_exemplars'), { query: q.expr, start: String(range.start), end: String(range.end) }, signal);
      return data.flatMap((d) => d.exemplars.map((e) => ({ query, metric: d.seriesLabels, time: e.timestamp, value: number(e.value), labels: e.labels })));
    } catch {
      return []; // the query's own error is shown already
    }
  }));
  return found.flat().slice(0, MARKS);
}

const MARKS = 500;

function describe(s: Shown): string {
  const answered = s.outcomes.filter((o) => o.answer);
  if (answered.length === 0) return '';
  const series = s.view === 'instant' ? answered.reduce((n, o) => n + (o.answer!.data.resultType === 'vector' ? (o.answer!.data.result as Series[]).length : 1), 0) : s.lines.length;
  const millis = Math.max(...answered.map((o) => o.answer!.millis));
  const points = s.view === 'instant' ? '' : ` · step ${duration(s.range.step)}`;
  return `${count(series)} series${points} · ${millis < 1000 ? millis.toFixed(0) + ' ms' : about(millis / 1000)}`;
}

function OutcomeNotices({ index, of, many }: { index: number; of: Outcome; many: boolean }) {
  const name = many ? letter(index) + ' ' : '';
  return (
    <>
      {of.error && <div data-query-error={letter(index)}><Problem error={of.error} name={many ? name : ''} /></div>}
      {of.answer?.warnings.map((w) => <Notice kind="warn" title={name + 'warning:'}>{w}</Notice>)}
      {of.answer?.infos.map((w) => <Notice kind="info" title={name + 'info:'}>{w}</Notice>)}
    </>
  );
}

const letter = (i: number) => String.fromCharCode(65 + (i % 26)) + (i >= 26 ? Math.floor(i / 26) : '');

interface RowProps {
  index: number; table: string; expr: string; written: number; off: boolean; only: boolean;
  onChange: (t: string) => void; onRun: () => void; onToggle: () => void; onCopy: () => void; onRemove: () => void;
}

function QueryRow(p: RowProps) {
  const host = useRef<HTMLDivElement>(null);
  const editor = useRef<Editor>(null);
  const latest = useRef(p);
  latest.current = p;
  useEffect(() => {
    let ended = false;
    void import('./editor').then(({ openEditor }) => {
      if (ended || !host.current) return;
      editor.current = openEditor({
        parent: host.current, text: latest.current.expr, table: latest.current.table, label: `Query ${letter(p.index)}`,
        onChange: (t) => latest.current.onChange(t), onRun: () => latest.current.onRun(),
      });
      if (p.index === 0 && latest.current.expr === '' && innerWidth > 700) editor.current.focus();
    });
    return () => {
      ended = true;
      editor.current?.destroy();
      editor.current = null;
    };
  }, []);
  useLayoutEffect(() => editor.current?.set(p.expr), [p.expr, p.written]);
  useEffect(() => editor.current?.setTable(p.table), [p.table]);
  return (
    <div class={'query' + (p.off ? ' off' : '')}>
      <span class="tag" style={{ background: colour(p.index) }}>{letter(p.index)}</span>
      <div class="editor" ref={host} data-query={letter(p.index)} onClick={() => editor.current?.focus()} />
      <div class="query-buttons">
        <Button bare small icon={p.off ? 'hidden' : 'eye'} label={p.off ? 'Show this query' : 'Hide this query'} pressed={p.off} onClick={p.onToggle} />
        <Button bare small icon="copy" label="Duplicate this query" onClick={p.onCopy} />
        <Button bare small icon="close" label="Remove this query" disabled={p.only} onClick={p.onRemove} />
      </div>
    </div>
  );
}

function StepInput({ value, auto, onChange }: { value: string; auto?: number; onChange: (v: string) => void }) {
  const [text, set] = useState(value);
  useEffect(() => set(value), [value]);
  const done = () => onChange(text.trim() === '' ? 'auto' : text.trim());
  return <input class="step" value={text === 'auto' ? '' : text} placeholder={auto ? `auto ${duration(auto)}` : 'auto'} aria-label="Step" onInput={(e) => set(e.currentTarget.value)} onBlur={() => text !== value && done()} onKeyDown={(e) => e.key === 'Enter' && done()} />;
}

function rangeText(s: State, utc: boolean, from: number, to: number): string {
  const relative = /^now-(.+)$/.exec(s.from);
  if (relative && s.to === 'now') return 'last ' + relative[1];
  if (!(from < to)) return 'choose a range';
  const [a, b] = [from * 1000, to * 1000];
  return date(a, utc) === date(b, utc) ? `${date(a, utc)} ${clock(a, utc).slice(0, 8)} – ${clock(b, utc).slice(0, 8)}` : `${date(a, utc)} ${clock(a, utc).slice(0, 5)} – ${date(b, utc)} ${clock(b, utc).slice(0, 5)}`;
}

function RangeMenu({ state, utc, from, to, onChange }: { state: State; utc: boolean; from: number; to: number; onChange: (s: Partial<State>) => void }) {
  const written = (s: string, at: number) => (s.startsWith('now') ? s : time(at * 1000, utc));
  const [a, setA] = useState('');
  const [b, setB] = useState('');
  useEffect(() => { setA(written(state.from, from)); setB(written(state.to, to)); }, [state.from, state.to, utc]);
  const good = (t: string) => Number.isFinite(parseTime(t, utc));
  const keep = (t: string) => (t.trim().startsWith('now') ? t.replace(/\s/g, '') : exact(parseTime(t, utc)));
  return (
    <Menu label={rangeText(state, utc, from, to)}>
      {(close) => (
        <form class="range-menu" onSubmit={(e) => { e.preventDefault(); if (good(a) && good(b)) { onChange({ from: keep(a), to: keep(b) }); close(); } }}>
          <div class="range-grid">
            {RANGES.map((r) => <button type="button" class="btn small" key={r} aria-pressed={state.from === 'now-' + r && state.to === 'now'} onClick={() => { onChange({ from: 'now-' + r, to: 'now' }); close(); }}>{r}</button>)}
          </div>
          <label>from<input value={a} class={good(a) ? '' : 'wrong'} onInput={(e) => setA(e.currentTarget.value)} /></label>
          <label>to<input value={b} class={good(b) ? '' : 'wrong'} onInput={(e) => setB(e.currentTarget.value)} /></label>
          <p class="dim">now-90m, 2026-01-31 12:00:00 ({utc ? 'UTC' : 'local time'}), or seconds since 1970</p>
          <button type="submit" class="btn primary" disabled={!good(a) || !good(b)}>Apply</button>
        </form>
      )}
    </Menu>
  );
}

function CopyLink() {
  const [done, set] = useState(false);
  return <Button small icon="link" label={done ? 'Copied' : 'Copy link'} onClick={async () => { try { await navigator.clipboard.writeText(location.href); set(true); setTimeout(() => set(false), 1500); } catch { prompt('The address of this view:', location.href); } }} />;
}

function GrafanaLink({ state }: { state: State }) {
  const url = useValue(grafana);
  const uid = useValue(grafanaSource);
  if (!url) {
    return (
      <Menu label="Grafana" icon="open" right small>
        {(close) => <GrafanaSettings onDone={close} />}
      </Menu>
    );
  }
  const range = { from: ms(state.from), to: ms(state.to) };
  const source = uid ? { type: 'prometheus', uid } : undefined;
  const panes = { a: { datasource: uid || undefined, queries: state.queries.filter((q) => q.expr.trim()).map((q, i) => ({ refId: letter(i), expr: q.expr, range: true, datasource: source })), range } };
  return <a class="btn small" id="grafana" target="_blank" rel="noreferrer" href={`${url.replace(/\/$/, '')}/explore?schemaVersion=1&orgId=1&panes=${encodeURIComponent(JSON.stringify(panes))}`}><Icon name="open" />Open in Grafana</a>;
}

const ms = (t: string) => (t.startsWith('now') ? t : String(Math.round(Number(t) * 1000)));

export function GrafanaSettings({ onDone }: { onDone: () => void }) {
  const [url, setURL] = useState(grafana.get());
  const [uid, setUID] = useState(grafanaSource.get());
  return (
    <form class="range-menu" onSubmit={(e) => { e.preventDefault(); grafana.set(url.trim()); grafanaSource.set(uid.trim()); onDone(); }}>
      <b>Open queries in Grafana</b>
      <label>address<input value={url} placeholder="http://localhost:3000" type="url" onInput={(e) => setURL(e.currentTarget.value)} /></label>
      <label>data source<input value={uid} placeholder="its uid; empty: the default one" onInput={(e) => setUID(e.currentTarget.value)} /></label>
      <p class="dim">Kept in this browser. The data source is of the type Prometheus, with the URL {base}.</p>
      <button type="submit" class="btn primary">Keep</button>
    </form>
  );
}

const NAMES = 200; // metrics to pick from at once

function Start({ table, onPick }: { table: string; onPick: (expr: string) => void }) {
  const [names, set] = useState<string[] | null>(null);
  const [part, setPart] = useState('');
  const epoch = useValue(reloads);
  useEffect(() => set(null), [table, epoch]);
  useEffect(() => {
    const ended = new AbortController();
    const query: Record<string, string> = { limit: String(NAMES + 1) };
    if (part) query['match[]'] = `{__name__=~${JSON.stringify(`(?i).*${part.replace(/[\\^$.|?*+()[\]{}]/g, '\\$&')}.*`)}}`;
    const timer = setTimeout(() => get<string[]>(ofTable(table, 'label/__name__/values'), query, ended.signal).then((a) => set(a.data), () => ended.signal.aborted || set([])), part ? 150 : 0);
    return () => { clearTimeout(timer); ended.abort(); };
  }, [table, epoch, part]);
  if (names === null) return <section class="card"><Loading what="Looking for metrics" /></section>;
  if (names.length === 0 && !part) {
    return (
      <section class="card">
        <Empty title={`There is nothing in table ${table} yet`}>
          <p>Write something, for example:</p>
          <pre class="code">curl '{base}write?db={table}' --data-binary 'cpu,host=a usage=42'</pre>
          <p>Prometheus writes to <code>{base}{ofTable(table, 'write')}</code>, OpenTelemetry to <code>{base}{table === 'default' ? '' : `t/${encodeURIComponent(table)}/`}v1/metrics</code>.</p>
        </Empty>
      </section>
    );
  }
  return (
    <section class="card">
      <h2>Metrics of table {table}</h2>
      <p class="dim">Pick one, or write a query above. Enter runs it, Ctrl-Space completes.</p>
      <label class="search"><Icon name="search" /><input type="search" value={part} placeholder="part of a name" aria-label="Search metrics" onInput={(e) => setPart(e.currentTarget.value.trim())} /></label>
      {names.length === 0 && <p class="dim">No metric has this in its name.</p>}
      <div class="chips">{names.slice(0, NAMES).map((n) => <button type="button" class="chip" key={n} onClick={() => onPick(/_(total|sum|count|bucket)$/.test(n) ? `rate(${n}[5m])` : plain(n))}>{n}</button>)}</div>
      {names.length > NAMES && <p class="dim">These are the first {NAMES}; a part of its name finds any other.</p>}
    </section>
  );
}

const plain = (n: string) => (/^[a-zA-Z_:][a-zA-Z0-9_:]*$/.test(n) ? n : `{${JSON.stringify(n)}}`);

interface ResultProps { shown: Shown; view: View; state: State; utc: boolean; onZoom: (a: number, b: number) => void; onReset: () => void }

function Result(p: ResultProps) {
  const { shown } = p;
  if (shown.view !== p.view) return <section class="card"><Loading what="Asking" /></section>;
  if (p.view === 'instant') return <Instant shown={shown} utc={p.utc} />;
  if (shown.lines.length === 0) {
    if (!shown.outcomes.some((o) => o.answer)) return null;
    return <section class="card"><Empty title="No series in this range">{`Nothing was found between ${time(shown.range.start * 1000, p.utc)} and ${time(shown.range.end * 1000, p.utc)}.`}</Empty></section>;
  }
  return p.view === 'table' ? <Matrix shown={shown} utc={p.utc} /> : <Graph {...p} />;
}

const DRAWN = 300; // lines; a plot of more is slow, and nobody tells them apart
const LISTED = 100; // lines of the legend, until asked for all

function Graph({ shown, state, onZoom, onReset }: ResultProps) {
  const [off, setOff] = useState<Set<string>>(new Set());
  const [all, setAll] = useState(false);
  const times = useMemo(() => steps(shown.range), [shown]);
  const many = shown.outcomes.filter((o) => o.answer).length > 1;
  const shared = useMemo(() => common(shown.lines.map((l) => l.metric)), [shown]);
  const without = useMemo(() => new Set(Object.keys(shared)), [shared]);
  const drawn = shown.lines.slice(0, DRAWN);
  const named = useMemo(() => drawn.map((l, i) => ({
    line: l, key: l.query + ' ' + seriesText(l.metric), colour: COLOURS[(i + (many ? l.query * 5 : 0)) % COLOURS.length],
    label: (many ? letter(l.query) + ' ' : '') + (seriesText(l.metric, without) || 'value'), sum: summary(l.values),
  })), [shown, without]);
  const plotted = useMemo(() => named.map((n) => ({ label: n.label, colour: n.colour, values: n.line.values, hidden: off.has(n.key) })), [named, off]);
  const marks = useMemo<Mark[]>(() => shown.marks.map((m) => {
    const of = named.find((n) => n.line.query === m.query);
    return { time: m.time, value: m.value, colour: of?.colour ?? '#888', text: `${short(m.value)} ${seriesText(m.labels)}` };
  }), [shown, named]);
  const histograms = shown.lines.reduce((n, l) => n + l.histograms, 0);
  // A click shows one line alone, and all again; with Ctrl it hides or shows the one.
  const pick = (key: string, e: { ctrlKey: boolean; metaKey: boolean }) => setOff((was) => {
    if (e.ctrlKey || e.metaKey) {
      const next = new Set(was);
      if (!next.delete(key)) next.add(key);
      return next;
    }
    const others = named.filter((n) => n.key !== key).map((n) => n.key);
    return others.length > 0 && !was.has(key) && others.every((k) => was.has(k)) ? new Set() : new Set(others);
  });
  const height = innerWidth < 600 ? 240 : 340;
  const [from, to] = state.from.startsWith('now') ? [shown.range.end - spanOf(state), shown.range.end] : [Number(state.from), state.to.startsWith('now') ? shown.range.end : Number(state.to)];
  return (
    <section class="card graph">
      {shown.lines.length > DRAWN && <Notice kind="info">{count(shown.lines.length)} series were found, the first {DRAWN} are drawn. Aggregate, or use topk().</Notice>}
      {histograms > 0 && <Notice kind="info">{count(histograms)} samples are native histograms, which have no line: use histogram_quantile, histogram_avg, histogram_count or histogram_sum.</Notice>}
      <Plot times={times} lines={plotted} height={height} label={`Plot of ${shown.lines.length} series`} marks={marks} range={from < to ? [from, to] : undefined} onZoom={onZoom} onReset={onReset} />
      {Object.keys(shared).length > 0 && <p class="shared"><span class="dim">all:</span> <code>{seriesText(shared)}</code></p>}
      <div class="legend" role="group" aria-label="Legend">
        <div class="legend-row head"><span>series</span><span class="n">last</span><span class="n">min</span><span class="n">mean</span><span class="n">max</span></div>
        {named.slice(0, all ? undefined : LISTED).map((n) => (
          <button type="button" aria-pressed={!off.has(n.key)} key={n.key} class={'legend-row' + (off.has(n.key) ? ' off' : '')} title={seriesText(n.line.metric) + '\nClick: this one alone. Ctrl-click: hide or show it.'} onClick={(e) => pick(n.key, e)}>
            <span class="legend-name"><i class="dot" style={{ background: n.colour }} /><span>{n.label}</span></span>
            <span class="n">{cell(n.sum.last)}</span><span class="n">{cell(n.sum.min)}</span><span class="n">{cell(n.sum.mean)}</span><span class="n">{cell(n.sum.max)}</span>
          </button>
        ))}
      </div>
      {!all && named.length > LISTED && <Button label={`Show all ${named.length}`} onClick={() => setAll(true)} />}
    </section>
  );
}

const cell = (v: number | null) => (v === null ? '–' : short(v));

const spanOf = (s: State) => {
  const to = s.to === 'now' ? 0 : seconds(s.to.replace(/^now-/, ''));
  return seconds(s.from.replace(/^now-/, '')) - (s.to.startsWith('now') ? to : 0);
};

const COLUMNS = 30;
const ROWS = 200;

function Matrix({ shown, utc }: { shown: Shown; utc: boolean }) {
  const [rows, setRows] = useState(ROWS);
  const times = steps(shown.range);
  const shared = common(shown.lines.map((l) => l.metric));
  const without = new Set(Object.keys(shared));
  const many = shown.outcomes.filter((o) => o.answer).length > 1;
  const columns = shown.lines.slice(0, COLUMNS);
  const name = (l: Line) => (many ? letter(l.query) + ' ' : '') + (seriesText(l.metric, without) || 'value');
  const used = times.map((_, i) => i).filter((i) => shown.lines.some((l) => l.values[i] !== null)).reverse();
  const save = () => {
    const url = URL.createObjectURL(new Blob([csv(shown.range, shown.lines, (l) => seriesText(l.metric))], { type: 'text/csv' }));
    const a = document.createElement('a');
    a.href = url;
    a.download = 'spillway.csv';
    a.click();
    URL.revokeObjectURL(url);
  };
  return (
    <section class="card">
      <div class="toolbar">
        {Object.keys(shared).length > 0 && <p class="shared"><span class="dim">all:</span> <code>{seriesText(shared)}</code></p>}
        <span class="grow" />
        {shown.lines.length > COLUMNS && <span class="dim">{COLUMNS} of {count(shown.lines.length)} series</span>}
        <Button small icon="down" label="CSV" onClick={save} />
      </div>
      <div class="scroll">
        <table class="matrix" id="matrix">
          <thead><tr><th>time</th>{columns.map((l) => <th class="n" title={seriesText(l.metric)}><span>{name(l)}</span></th>)}</tr></thead>
          <tbody>
            {used.slice(0, rows).map((i) => (
              <tr key={times[i]} data-time={times[i]}><th class="time">{time(times[i] * 1000, utc)}</th>{columns.map((l) => <td class="n">{l.values[i] === null ? <span class="faint">–</span> : String(l.values[i])}</td>)}</tr>
            ))}
          </tbody>
        </table>
      </div>
      {used.length > rows && <Button label={`Show ${Math.min(1000, used.length - rows)} more of ${used.length} times`} onClick={() => setRows(rows + 1000)} />}
    </section>
  );
}

function Instant({ shown, utc }: { shown: Shown; utc: boolean }) {
  const [rows, setRows] = useState(ROWS);
  const [order, setOrder] = useState<'' | 'up' | 'down'>('');
  const many = shown.outcomes.filter((o) => o.answer).length > 1;
  const found = shown.outcomes.flatMap((o, query) => {
    if (!o.answer) return [];
    const { resultType, result } = o.answer.data;
    if (resultType === 'scalar' || resultType === 'string') return [{ query, metric: {} as Labels, at: (result as Sample)[0], text: (result as Sample)[1], what: resultType as string }];
    return (result as Series[]).flatMap((s) => (resultType === 'matrix'
      ? (s.values ?? []).map((v) => ({ query, metric: s.metric, at: v[0], text: v[1], what: '' }))
      : s.value ? [{ query, metric: s.metric, at: s.value[0], text: s.value[1], what: '' }]
      : [{ query, metric: s.metric, at: s.histogram?.[0] ?? 0, text: histogramText(s.histogram?.[1]), what: '' }]));
  });
  if (found.length === 0) return shown.outcomes.some((o) => o.answer) ? <section class="card"><Empty title="No series at this time" /></section> : null;
  if (order) found.sort((a, b) => (number(a.text) - number(b.text)) * (order === 'up' ? 1 : -1));
  const shared = common(found.map((f) => f.metric));
  const without = new Set(Object.keys(shared));
  return (
    <section class="card">
      <p class="shared"><span class="dim">at {time(found[0].at * 1000, utc)}</span>{Object.keys(shared).length > 0 && <> <span class="dim">· all:</span> <code>{seriesText(shared)}</code></>}</p>
      <div class="scroll">
        <table id="instant">
          <thead><tr><th>series</th><th class="n"><button type="button" class="sort" onClick={() => setOrder(order === 'down' ? 'up' : order === 'up' ? '' : 'down')}>value {order === 'down' ? '↓' : order === 'up' ? '↑' : ''}</button></th></tr></thead>
          <tbody>
            {found.slice(0, rows).map((f, i) => (
              <tr key={i}><td class="series">{many && <span class="tag small" style={{ background: colour(f.query) }}>{letter(f.query)}</span>}<code>{f.what || seriesText(f.metric, without) || 'value'}</code></td><td class="n" data-value={f.text}>{f.text}</td></tr>
            ))}
          </tbody>
        </table>
      </div>
      {found.length > rows && <Button label={`Show ${Math.min(1000, found.length - rows)} more of ${count(found.length)}`} onClick={() => setRows(rows + 1000)} />}
    </section>
  );
}

function histogramText(h: unknown): string {
  const { count: n, sum } = (h ?? {}) as { count?: string; sum?: string };
  return `native histogram: count ${n ?? '?'}, sum ${sum ?? '?'}`;
}

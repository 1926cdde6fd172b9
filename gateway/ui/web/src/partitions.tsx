// Partitions of one table as rectangles over time and ring, with search and a look into each.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { get, type Answer } from './api';
import { about, bytes, count, some, time, UNKNOWN } from './format';
import { Forecasts } from './forecast';
import { COLOURS } from './plot';
import { Bar, Button, Choice, Empty, Icon, Known, Loading, Problem } from './parts';
import { alter, dark, usePoll, useUTC, useValue, useWidth } from './store';
import { timeAxis, toShare, toTime, type Axis } from './timeaxis';
import type { Partition, Server, Status, Transfer } from './types';

type Paint = 'leader' | 'rows' | 'bytes';

const PAINTS: [Paint, string][] = [['leader', 'Leader'], ['rows', 'Rows'], ['bytes', 'Size']];

interface Rect { p: Partition; lo: number; hi: number }

const HEIGHT = 190;
const LISTED = 100;

export function Partitions({ status, table, params }: { status: Status; table: string; params: URLSearchParams }) {
  const utc = useUTC();
  const { data, error } = usePoll<Answer<Status>>('partitions ' + table, 10, (signal) => get<Status>('api/v1/status/cluster', { table }, signal));
  const find = params.get('find') ?? '';
  const setFind = (text: string) => alter({ find: text });
  const paint = PAINTS.find(([p]) => p === params.get('by'))?.[0] ?? 'leader';
  const linear = params.get('axis') === 'linear';
  const [window_, setWindow] = useState<[number, number]>([0, 1]);
  const [rows, setRows] = useState(LISTED);
  useEffect(() => { setWindow([0, 1]); setRows(LISTED); }, [table, linear]);
  const chosen = params.get('partition');

  const of = data?.data.tables.find((t) => t.name === table);
  const servers = useMemo(() => new Map((data?.data.servers ?? []).map((s) => [s.id, s])), [data]);
  const rects = useMemo<Rect[]>(() => (of?.partitions ?? []).map((p) => ({ p, lo: Date.parse(p.from) / 1000, hi: Date.parse(p.to) / 1000 })).sort((a, b) => a.lo - b.lo || a.p.ring_lo - b.p.ring_lo), [of]);
  const axis = useMemo(() => timeAxis(rects, linear), [rects, linear]);
  const colours = useMemo(() => {
    const ids = [...new Set([...servers.keys(), ...rects.map((r) => r.p.leader ?? '')])].filter(Boolean).sort();
    return new Map(ids.map((id, i) => [id, COLOURS[(i * 3) % COLOURS.length]]));
  }, [servers, rects]);
  const match = useMemo(() => matcher(find, utc, servers), [find, utc, servers]);
  const found = useMemo(() => rects.filter((r) => match(r.p)), [rects, match]);
  const one = rects.find((r) => String(r.p.id) === chosen);
  const choose = (r: Rect | null) => alter({ partition: r ? String(r.p.id) : undefined });

  if (!data) return <main>{error ? <Problem error={error} /> : <section class="card"><Loading what="Asking for the map" /></section>}</main>;
  if (!of) return <main><section class="card"><Empty title={`There is no table ${table}`} /></section></main>;
  const trouble = rects.filter((r) => troubled(r.p, servers));
  return (
    <main>
      <section class="card">
        <div class="toolbar">
          <label class="search"><Icon name="search" /><input type="search" id="find" value={find} placeholder="p7, server, date, dead, behind…" aria-label="Search partitions" onInput={(e) => setFind(e.currentTarget.value)} /></label>
          <span class="dim" id="found">{find ? `${count(found.length)} of ` : ''}{some(rects.length, 'partition')}</span>
          {trouble.length > 0 && <Button small icon="warn" label={`${count(trouble.length)} need a look`} onClick={() => setFind('trouble')} />}
          <span class="grow" />
          <Choice<Paint> label="Colour by" value={paint} options={PAINTS} onChange={(by) => alter({ by: by === 'leader' ? undefined : by })} />
          <Choice label="Time axis" value={linear ? 'linear' : 'compressed'} options={[['compressed', 'Compressed'], ['linear', 'Linear']]} onChange={(v) => alter({ axis: v === 'linear' ? v : undefined })} />
          <div class="joined">
            <Button icon="in" label="Zoom in" bare onClick={() => setWindow(zoomed(window_, 0.5))} />
            <Button icon="out" label="Zoom out" bare onClick={() => setWindow(zoomed(window_, 2))} />
          </div>
        </div>
        {rects.length === 0 ? <Empty title="No partitions yet">The first write makes one.</Empty> : (
          <>
            <RingMap rects={rects} axis={axis} window={window_} colours={colours} servers={servers} paint={paint} match={find ? match : null} chosen={one} now={Date.parse(data.data.now) / 1000}
              onWindow={setWindow} onChoose={choose} />
            <Legend colours={colours} servers={servers} paint={paint} rects={rects} onPick={setFind} />
          </>
        )}
      </section>
      {one && <Detail r={one} servers={servers} status={status} onClose={() => choose(null)} step={(by) => { const i = rects.indexOf(one) + by; if (rects[i]) choose(rects[i]); }} />}
      <Transfers rects={rects} choose={choose} />
      {status.role !== 'standalone' && <Forecasts table={table} />}
      {rects.length > 0 && (
        <section class="card">
          <div class="scroll">
            <table id="partitions">
              <thead><tr><th>partition</th><th>from</th><th>to</th><th>ring</th><th>leader</th><th class="n">rows</th><th class="n">size</th><th>state</th></tr></thead>
              <tbody>
                {found.slice().reverse().slice(0, rows).map((r) => (
                  <tr key={r.p.id} class={r === one ? 'chosen' : ''} data-partition={r.p.id}>
                    <td><button type="button" class="sort link" onClick={() => choose(r)}>{r.p.id}</button></td>
                    <td class="t">{time(r.lo * 1000, utc)}</td><td class="t">{time(r.hi * 1000, utc)}</td><td>{ring(r.p)}</td>
                    <td>{r.p.leader ? <><i class="dot" style={{ background: colours.get(r.p.leader) }} /> {r.p.leader}</> : r.p.ahead ? <span class="dim">not yet</span> : <b class="bad-text">none</b>}</td>
                    <td class="n"><Known text={count(r.p.rows)} /></td><td class="n"><Known text={bytes(r.p.bytes)} /></td><td>{states(r.p, servers).map((s) => <span class="bad-text" key={s}>{s} </span>)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          {found.length === 0 && <Empty title="Nothing is found">{`No partition fits ${find}.`}</Empty>}
          {found.length > rows && <Button label={`Show ${Math.min(1000, found.length - rows)} more of ${count(found.length)}`} onClick={() => setRows(rows + 1000)} />}
        </section>
      )}
    </main>
  );
}

/** Transfers lists the rows on their way, those that take longest first; nothing where there are none. */
function Transfers({ rects, choose }: { rects: Rect[]; choose: (r: Rect) => void }) {
  const all = rects.flatMap((r) => (r.p.transfers ?? []).map((x) => ({ r, x })));
  if (all.length === 0) return null;
  all.sort((a, b) => (b.x.left_ns ?? Infinity) - (a.x.left_ns ?? Infinity) || a.r.p.id - b.r.p.id);
  const more = all.length - LISTED;
  return (
    <section class="card" id="transfers">
      <h2>Rows on their way</h2>
      <div class="scroll">
        <table>
          <thead><tr><th>partition</th><th>from</th><th>to</th><th>done</th><th class="n">bytes</th><th class="n">rate</th><th class="n">time left</th></tr></thead>
          <tbody>
            {all.slice(0, LISTED).map(({ r, x }) => (
              <tr key={`${r.p.id} ${x.to}`} data-partition={r.p.id}>
                <td><button type="button" class="sort link" onClick={() => choose(r)}>{r.p.id}</button></td>
                <td>{x.from}</td><td>{target(x)}</td>
                <td><Bar share={x.total_bytes > 0 ? Math.min(1, x.done_bytes / x.total_bytes) : 0} /></td>
                <td class="n">{bytes(x.done_bytes)} of {bytes(x.total_bytes)}</td>
                <td class="n"><Known text={x.bytes_per_second > 0 ? bytes(x.bytes_per_second) + '/s' : UNKNOWN} /></td>
                <td class="n"><Known text={x.left_ns === null ? UNKNOWN : about(x.left_ns / 1e9)} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {more > 0 && <p class="dim">and {count(more)} more</p>}
    </section>
  );
}

const target = (x: Transfer) => x.to ?? `partitions ${(x.into ?? []).join(', ')}`;

const ring = (p: Partition) => (p.ring_lo === 0 && p.ring_hi === 1 ? 'all' : `${p.ring_lo.toFixed(4)} – ${p.ring_hi.toFixed(4)}`);

function states(p: Partition, servers: Map<string, Server>): string[] {
  const out: string[] = [];
  if (p.offline) out.push('offline');
  if (unled(p)) out.push('no leader');
  else if (dead(p, servers)) out.push('leader dead');
  if (p.damaged) out.push('damaged');
  if (p.unflushed) out.push('unflushed');
  if (lags(p)) out.push('copies behind');
  if (p.state !== 'live') out.push(p.state);
  return out;
}

/** unled: no server leads it, and one should. */
const unled = (p: Partition) => !p.leader && !p.ahead;

const dead = (p: Partition, servers: Map<string, Server>) => unled(p) || servers.get(p.leader ?? '')?.live === false;

/** lags: a copy lacks rows that were acknowledged. */
const lags = (p: Partition) => !p.empty && (p.behind ?? []).length > 0;

/** troubled is what the button counts, and what it searches for. */
const troubled = (p: Partition, servers: Map<string, Server>) => dead(p, servers) || lags(p) || !!(p.offline || p.damaged || p.unflushed) || p.rows === null;

/** matcher tells which partitions a search means: all its words must fit. */
function matcher(text: string, utc: boolean, servers: Map<string, Server>): (p: Partition) => boolean {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (p: Partition, w: string): boolean => {
    switch (w) {
      case 'damaged': return !!p.damaged;
      case 'unflushed': return !!p.unflushed;
      case 'offline': return !!p.offline;
      case 'unknown': return p.rows === null;
      case 'empty': return p.rows === 0;
      case 'behind': return lags(p);
      case 'ahead': return !!p.ahead;
      case 'moving': return (p.transfers ?? []).length > 0;
      case 'dead': return dead(p, servers);
      case 'trouble': return troubled(p, servers);
    }
    if (/^p?\d{1,8}$/.test(w) && String(p.id) === w.replace('p', '')) return true; // commands write p7
    if (/^\d{4}(-\d{0,2}){0,2}$/.test(w)) return time(Date.parse(p.from), utc).startsWith(w) || (w.length === 10 && Date.parse(p.from) <= Date.parse(w) && Date.parse(w) < Date.parse(p.to));
    return [p.leader, ...(p.servers ?? []), p.state].some((s) => s?.toLowerCase().includes(w));
  };
  return (p) => words.every((w) => fits(p, w));
}

function zoomed([a, b]: [number, number], by: number, at = (a + b) / 2): [number, number] {
  const width = Math.min(1, Math.max(1e-5, (b - a) * by));
  const lo = Math.min(1 - width, Math.max(0, at - ((at - a) / (b - a)) * width));
  return [lo, lo + width];
}

interface MapProps {
  rects: Rect[]; axis: Axis; window: [number, number]; colours: Map<string, string>; servers: Map<string, Server>; paint: Paint;
  match: ((p: Partition) => boolean) | null; chosen?: Rect; now: number;
  onWindow: (w: [number, number]) => void; onChoose: (r: Rect) => void;
}

function RingMap(p: MapProps) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const isDark = useValue(dark);
  const utc = useUTC();
  const [hover, setHover] = useState<{ r: Rect; x: number; y: number } | null>(null);
  const [drag, setDrag] = useState<[number, number] | null>(null);
  const [a, b] = p.window;
  const x = (t: number) => ((toShare(p.axis, t) - a) / (b - a)) * width;

  useEffect(() => {
    const c = canvas.current;
    if (!c || width === 0) return;
    const dpr = devicePixelRatio || 1;
    c.width = width * dpr;
    c.height = HEIGHT * dpr;
    const g = c.getContext('2d')!;
    g.scale(dpr, dpr);
    draw(g, p, width, x, utc);
  }, [p.rects, p.axis, a, b, p.colours, p.servers, p.paint, p.match, p.chosen, width, isDark, utc]);

  const share = (px: number) => a + (px / width) * (b - a);
  const under = (px: number, py: number): Rect | null => {
    if (py < 0 || py > HEIGHT) return null;
    const t = toTime(p.axis, share(px));
    const point = 1 - py / HEIGHT;
    let best: Rect | null = null;
    for (const r of p.rects) {
      if (r.lo > t && x(r.lo) > px + 2) break;
      if (r.p.ring_lo <= point && point <= r.p.ring_hi && x(r.lo) - 1 <= px && px <= Math.max(x(r.hi), x(r.lo) + 1)) best = r;
    }
    return best;
  };
  const position = (e: PointerEvent | MouseEvent): [number, number] => {
    const box = canvas.current!.getBoundingClientRect();
    return [e.clientX - box.left, e.clientY - box.top];
  };
  const step = (by: number) => {
    const i = p.chosen ? p.rects.indexOf(p.chosen) + by : by > 0 ? 0 : p.rects.length - 1;
    if (!p.rects[i]) return;
    p.onChoose(p.rects[i]);
    const at = toShare(p.axis, (p.rects[i].lo + p.rects[i].hi) / 2);
    if (at < a || at > b) p.onWindow([Math.max(0, at - (b - a) / 2), Math.min(1, at + (b - a) / 2)]);
  };
  const keys = (e: KeyboardEvent) => {
    const moves: Record<string, () => void> = { ArrowLeft: () => step(-1), ArrowRight: () => step(1), '+': () => p.onWindow(zoomed(p.window, 0.5)), '-': () => p.onWindow(zoomed(p.window, 2)), '0': () => p.onWindow([0, 1]) };
    if (!moves[e.key]) return;
    e.preventDefault();
    moves[e.key]();
  };
  const ticks = useMemo(() => labels(p, width, utc), [p.axis, a, b, width, utc]);
  return (
    <div class="map" ref={ref}>
      <div class="map-side dim" aria-hidden="true"><span>1</span><span>ring</span><span>0</span></div>
      <canvas ref={canvas} id="map" style={{ width: width + 'px', height: HEIGHT + 'px' }} tabIndex={0} role="img"
        aria-label={`${some(p.rects.length, 'partition')} over time and ring. Arrow keys choose one, + and - zoom, 0 shows all.`} onKeyDown={keys}
        onPointerDown={(e) => { const [px] = position(e); setDrag([px, px]); (e.currentTarget as HTMLElement).setPointerCapture(e.pointerId); }}
        onPointerMove={(e) => { const [px, py] = position(e); if (drag) setDrag([drag[0], px]); const r = under(px, py); setHover(r ? { r, x: px, y: py } : null); }}
        onPointerUp={(e) => {
          const [px, py] = position(e);
          if (drag && Math.abs(drag[1] - drag[0]) > 5) p.onWindow([share(Math.min(...drag)), share(Math.max(...drag))].map((v) => Math.min(1, Math.max(0, v))) as [number, number]);
          else { const r = under(px, py); if (r) p.onChoose(r); }
          setDrag(null);
        }}
        onPointerLeave={() => setHover(null)} onDblClick={() => p.onWindow([0, 1])}
        onWheel={(e) => { if (!e.ctrlKey && !e.shiftKey) return; e.preventDefault(); p.onWindow(zoomed(p.window, e.deltaY > 0 || e.deltaX > 0 ? 1.25 : 0.8, share(position(e)[0]))); }} />
      {drag && Math.abs(drag[1] - drag[0]) > 3 && <div class="map-drag" style={{ left: Math.min(...drag) + 'px', width: Math.abs(drag[1] - drag[0]) + 'px', height: HEIGHT + 'px' }} />}
      <div class="map-ticks">{ticks.map((t) => <span key={t.x} class={t.gap ? 'gap' : ''} style={{ left: t.x + 'px' }}>{t.text}</span>)}</div>
      {hover && !drag && (
        <div class="tip" style={{ top: Math.min(hover.y + 12, HEIGHT - 60) + 'px', ...(hover.x > width / 2 ? { right: width - hover.x + 12 + 'px' } : { left: hover.x + 12 + 'px' }) }}>
          <b>partition {hover.r.p.id}</b> {states(hover.r.p, p.servers).map((s) => <span class="bad-text" key={s}> {s}</span>)}
          <div class="dim">{time(hover.r.lo * 1000, utc)} – {time(hover.r.hi * 1000, utc)}</div>
          {!(hover.r.p.ring_lo === 0 && hover.r.p.ring_hi === 1) && <div class="dim">ring {ring(hover.r.p)}</div>}
          <div>{hover.r.p.leader ? `led by ${hover.r.p.leader}` : hover.r.p.ahead ? 'ahead of its time' : 'no leader'} · <Known text={hover.r.p.rows === null ? UNKNOWN : count(hover.r.p.rows) + ' rows'} /> · <Known text={bytes(hover.r.p.bytes)} /></div>
        </div>
      )}
    </div>
  );
}

const css = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function draw(g: CanvasRenderingContext2D, p: MapProps, width: number, x: (t: number) => number, utc: boolean) {
  void utc;
  const [surface, sunken, bad, faint, text, accent] = ['--surface', '--sunken', '--bad', '--faint', '--text', '--accent'].map(css);
  g.clearRect(0, 0, width, HEIGHT);
  g.fillStyle = sunken;
  g.fillRect(0, 0, width, HEIGHT);
  const hatch = hatching(g, dark.get() ? 'rgba(0,0,0,.55)' : 'rgba(255,255,255,.6)');
  const most = Math.log1p(p.rects.reduce((m, r) => Math.max(m, (p.paint === 'rows' ? r.p.rows : r.p.bytes) ?? 0), 0)) || 1;
  for (const r of p.rects) {
    const x0 = x(r.lo), x1 = Math.max(x(r.hi), x0 + 0.6);
    if (x1 < 0 || x0 > width) continue;
    const y0 = (1 - r.p.ring_hi) * HEIGHT, y1 = (1 - r.p.ring_lo) * HEIGHT;
    const w = x1 - x0, h = y1 - y0;
    const gap = w > 5 ? 1 : w > 2.5 ? 0.4 : 0;
    const value = p.paint === 'leader' ? 0 : p.paint === 'rows' ? r.p.rows : r.p.bytes;
    g.globalAlpha = p.match && !p.match(r.p) ? 0.14 : 1;
    if (p.paint === 'leader') g.fillStyle = (r.p.leader && p.colours.get(r.p.leader)) || faint;
    else if (value === null) g.fillStyle = faint;
    else { g.fillStyle = accent; g.globalAlpha *= 0.14 + 0.86 * (Math.log1p(value) / most); }
    g.fillRect(x0, y0, w - gap, h - (h > 6 ? 1 : 0));
    if (dead(r.p, p.servers) || r.p.rows === null) {
      g.fillStyle = hatch;
      g.fillRect(x0, y0, w - gap, h - 1);
    }
    if (r.p.offline || r.p.damaged || r.p.unflushed) {
      g.fillStyle = bad;
      g.fillRect(x0, y1 - 6, Math.max(w - gap, 2), 5);
    }
    g.globalAlpha = 1;
  }
  // Time that no partition covers is cut out, and that is seen.
  for (const gap of p.axis.gaps) {
    const x0 = x(gap.from), x1 = x(gap.to);
    if (x1 < 0 || x0 > width || x1 - x0 < 3) continue;
    g.strokeStyle = faint;
    g.lineWidth = 1;
    g.beginPath();
    const mid = (x0 + x1) / 2;
    for (const off of [-2, 2]) for (let y = 0; y <= HEIGHT; y += 8) (y === 0 ? g.moveTo : g.lineTo).call(g, mid + off + ((y / 8) % 2 ? 2 : -2), y);
    g.stroke();
  }
  if (p.now > p.axis.edges[0] && p.now < p.axis.edges[p.axis.edges.length - 1]) {
    const at = Math.round(x(p.now)) + 0.5;
    g.strokeStyle = text;
    g.setLineDash([3, 3]);
    g.beginPath();
    g.moveTo(at, 0);
    g.lineTo(at, HEIGHT);
    g.stroke();
    g.setLineDash([]);
  }
  if (p.chosen) {
    const x0 = x(p.chosen.lo), x1 = Math.max(x(p.chosen.hi), x0 + 3);
    const y0 = (1 - p.chosen.p.ring_hi) * HEIGHT, y1 = (1 - p.chosen.p.ring_lo) * HEIGHT;
    for (const [colour, line] of [[surface, 5], [text, 2]] as const) {
      g.strokeStyle = colour;
      g.lineWidth = line;
      g.strokeRect(x0 + 1, y0 + 1, x1 - x0 - 3, y1 - y0 - 3);
    }
  }
}

function hatching(g: CanvasRenderingContext2D, colour: string): CanvasPattern {
  const tile = document.createElement('canvas');
  tile.width = tile.height = 8;
  const t = tile.getContext('2d')!;
  t.strokeStyle = colour;
  t.lineWidth = 2.5;
  t.beginPath();
  for (const d of [-8, 0, 8]) { t.moveTo(d, 8); t.lineTo(d + 8, 0); }
  t.stroke();
  return g.createPattern(tile, 'repeat')!;
}

/** labels writes times below the map where there is room for them. */
function labels(p: MapProps, width: number, utc: boolean): { x: number; text: string; gap: boolean }[] {
  if (width === 0) return [];
  const [a, b] = p.window;
  const out: { x: number; text: string; gap: boolean }[] = [];
  const room = 96;
  const free = (x: number) => out.every((o) => Math.abs(o.x - x) > room);
  const put = (x: number, text: string, gap: boolean) => { if (x >= 0 && x <= width - 60 && free(x)) out.push({ x, text, gap }); };
  const place = (t: number) => ((toShare(p.axis, t) - a) / (b - a)) * width;
  const [lo, hi] = [toTime(p.axis, a), toTime(p.axis, b)];
  // The time of day is written where partitions are shorter than a day.
  const short = (t: number) => p.axis.edges.some((e, i) => e === t && (p.axis.edges[i + 1] ?? Infinity) - e < 86400);
  const write = (t: number) => (hi - lo < 3 * 86400 || short(t) ? time(t * 1000, utc).slice(5, 16) : time(t * 1000, utc).slice(0, 10));
  put(Math.max(0, place(Math.max(lo, p.axis.edges[0]))), write(Math.max(lo, p.axis.edges[0])), false);
  for (const gap of p.axis.gaps) if (place(gap.to) - place(gap.from) > 3 && gap.to - gap.from > 86400) put(place(gap.to), write(gap.to), false);
  if (p.now > lo && p.now < hi) put(place(p.now), 'now', false);
  for (let i = 1; i < Math.floor(width / room); i++) {
    const at = i * room * 1.15;
    const t = toTime(p.axis, a + (at / width) * (b - a));
    const edge = nearest(p.axis.edges, t);
    put(place(edge), write(edge), false);
  }
  return out;
}

function nearest(edges: number[], t: number): number {
  let lo = 0, hi = edges.length - 1;
  while (lo < hi) { const mid = (lo + hi) >> 1; if (edges[mid] < t) lo = mid + 1; else hi = mid; }
  return lo > 0 && t - edges[lo - 1] < edges[lo] - t ? edges[lo - 1] : edges[lo];
}

function Legend({ colours, servers, paint, rects, onPick }: { colours: Map<string, string>; servers: Map<string, Server>; paint: Paint; rects: Rect[]; onPick: (s: string) => void }) {
  const none = rects.filter((r) => unled(r.p)).length;
  const ahead = rects.filter((r) => r.p.ahead).length;
  const unknown = rects.filter((r) => r.p.rows === null).length;
  return (
    <div class="map-legend">
      {paint === 'leader' ? [...colours].map(([id, colour]) => (
        <button type="button" class="sort" key={id} onClick={() => onPick(id)}><i class={'dot' + (servers.get(id)?.live === false ? ' hatched' : '')} style={{ background: colour }} /> {id}{servers.get(id)?.live === false && <span class="bad-text"> dead</span>}</button>
      )) : <span class="dim">stronger colour: more {paint === 'rows' ? 'rows' : 'bytes'} (logarithmic)</span>}
      {none > 0 && <span><i class="dot hatched" style={{ background: 'var(--faint)' }} /> no leader ({count(none)})</span>}
      {ahead > 0 && <button type="button" class="sort" onClick={() => onPick('ahead')}><i class="dot" style={{ background: 'var(--faint)' }} /> ahead of their time ({count(ahead)})</button>}
      {unknown > 0 && <button type="button" class="sort" onClick={() => onPick('unknown')}><i class="dot hatched" /> <span class="unknown">unknown</span> size ({count(unknown)})</button>}
      <span class="grow" />
      <span class="dim hint">drag to zoom · double-click shows all · ╱╲ time without partitions</span>
    </div>
  );
}

/** Copies says which placements have every row that was acknowledged, and which do not. */
function Copies({ p }: { p: Partition }) {
  const nothing = p.ahead ? <span class="dim">not yet</span> : <Known text={UNKNOWN} />;
  return (
    <>
      <dt>in sync</dt><dd id="in-sync">{!p.in_sync ? nothing : p.in_sync.length === 0 ? <b class="bad-text">none</b> : p.in_sync.join(' ')}{p.in_sync && p.empty && <span class="dim"> · no row was acknowledged yet</span>}</dd>
      <dt>not in sync</dt><dd id="behind">{!p.behind ? nothing : p.behind.length === 0 ? <span class="dim">none</span> : <span class={p.empty ? '' : 'warn-text'}>{p.behind.join(' ')}</span>}</dd>
    </>
  );
}

function Detail({ r, servers, status, onClose, step }: { r: Rect; servers: Map<string, Server>; status: Status; onClose: () => void; step: (by: number) => void }) {
  const utc = useUTC();
  const { p } = r;
  return (
    <section class="card" id="partition-details">
      <div class="toolbar"><h2>Partition {p.id}</h2>{states(p, servers).map((s) => <b class="bad-text" key={s}>{s}</b>)}<span class="grow" /><Button bare small icon="left" label="The one before" onClick={() => step(-1)} /><Button bare small icon="right" label="The next" onClick={() => step(1)} /><Button bare small icon="close" label="Close" onClick={onClose} /></div>
      <div class="columns">
        <dl>
          <dt>time</dt><dd>{time(r.lo * 1000, utc)} – {time(r.hi * 1000, utc)} <span class="dim">· {about(r.hi - r.lo)}</span></dd>
          <dt>ring</dt><dd>{ring(p)}</dd>
          <dt>rows</dt><dd><Known text={count(p.rows)} /></dd>
          <dt>size</dt><dd><Known text={bytes(p.bytes)} />{p.rows !== null && p.bytes !== null && p.rows > 0 && <span class="dim"> · {(p.bytes / p.rows).toFixed(1)} bytes a row</span>}</dd>
        </dl>
        <dl>
          <dt>leader</dt><dd>{p.leader ?? (p.ahead ? <span class="dim">not yet: its time has not come</span> : <b class="bad-text">none</b>)}{p.lease_age_ns ? <span class="dim"> · for {about(p.lease_age_ns / 1e9)}</span> : null}</dd>
          {status.role !== 'standalone' && <><dt>epoch</dt><dd id="epoch">{p.ahead && !p.epoch ? <span class="dim">not yet</span> : <Known text={p.epoch ? count(p.epoch) : UNKNOWN} />}{p.epoch && !p.leader ? <span class="dim"> · of the last leader</span> : null}</dd></>}
          <dt>placed on</dt><dd>{(p.servers ?? []).map((s) => <span key={s}>{s}{status.whole && servers.get(s)?.live === false && <span class="bad-text"> (dead)</span>} </span>)}</dd>
          {status.role !== 'standalone' && <Copies p={p} />}
          {p.offline && <><dt>offline</dt><dd class="bad-text">{p.offline}</dd></>}
          {p.damaged && <><dt>damaged</dt><dd class="bad-text">{p.damaged}</dd></>}
          {p.unflushed && <><dt>not flushed</dt><dd class="bad-text">{p.unflushed}</dd></>}
        </dl>
      </div>
    </section>
  );
}

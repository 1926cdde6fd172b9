// A plot of lines over time, by uPlot: hover, zoom by drag, focus on the nearest line.
import { useEffect, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import { clock, date, parts, short } from './format';
import { dark, useUTC, useValue, useWidth } from './store';

export interface PlotLine {
  label: string;
  colour: string;
  values: (number | null)[];
  hidden?: boolean;
}

export interface Mark { // an exemplar
  time: number;
  value: number;
  colour: string;
  text: string;
}

interface Props {
  times: number[];
  lines: PlotLine[];
  height: number;
  label: string;
  range?: [number, number];
  marks?: Mark[];
  format?: (v: number) => string;
  area?: boolean;
  onZoom?: (from: number, to: number) => void;
  onReset?: () => void;
}

// Sixteen colours that are told apart on light and on dark.
export const COLOURS = ['#2a8bd6', '#e8743b', '#19a979', '#d64581', '#8b6cd9', '#c9a227', '#13a4b4', '#e0554f', '#6b9e3e', '#b565c9', '#4b6fd1', '#d98b2b', '#3aa58d', '#a0617a', '#7d8a2e', '#6d7f91'];

export const colour = (i: number) => COLOURS[i % COLOURS.length];

interface Hover { left: number; top: number; time: number; rows: { label: string; colour: string; value: number; near: boolean }[]; more: number; mark?: Mark }

const css = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** ticks writes the times of the axis: the date only where it changes. */
function ticks(utc: boolean) {
  return (_u: uPlot, splits: number[], _i: number, _space: number, incr: number): string[] => {
    let day = '';
    return splits.map((t) => {
      const p = parts(t * 1000, utc);
      if (incr >= 86400) return date(t * 1000, utc).slice(incr >= 28 * 86400 ? 0 : 5, incr >= 28 * 86400 ? 7 : 10);
      const d = date(t * 1000, utc);
      const text = incr < 1 ? clock(t * 1000, utc, true).slice(3) : incr < 60 ? clock(t * 1000, utc) : clock(t * 1000, utc).slice(0, 5);
      const first = day !== '' && d !== day;
      day = d;
      return first || (p.h === 0 && p.mi === 0 && p.s === 0 && p.ms === 0) ? d.slice(5) : text;
    });
  };
}

const finite = (v: number | null) => (v !== null && Number.isFinite(v) ? v : null);

export function Plot(p: Props) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const holder = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const latest = useRef(p);
  latest.current = p;
  const isDark = useValue(dark);
  const utc = useUTC();
  const [hover, setHover] = useState<Hover | null>(null);
  // A plot is made anew when its lines are others; new values of the same lines flow into it.
  const shape = JSON.stringify([p.lines.map((l) => [l.label, l.colour, l.hidden]), isDark, utc, p.height, p.area]);

  useEffect(() => {
    if (!holder.current || width === 0) return;
    const grid = { stroke: css('--grid'), width: 1 };
    const axis = { stroke: css('--muted'), font: '12px ' + css('--sans'), grid, ticks: { ...grid, size: 5 } };
    const narrow = width < 480;
    const u = new uPlot(
      {
        width, height: p.height, padding: [10, 34, 0, 0],
        tzDate: (t) => (utc ? uPlot.tzDate(new Date(t * 1000), 'Etc/UTC') : new Date(t * 1000)),
        legend: { show: false },
        focus: { alpha: 0.3 },
        cursor: { focus: { prox: 18 }, drag: { x: !!p.onZoom, y: false, setScale: false, dist: 4 }, points: { size: 7, width: 2 }, bind: { dblclick: () => () => (latest.current.onReset?.(), null) } },
        scales: {
          x: { time: true, range: (_u, lo, hi) => latest.current.range ?? [lo ?? 0, hi ?? 1] },
          y: { range: (_u, lo, hi) => yRange(lo, hi, latest.current.area === true) },
        },
        axes: [
          { ...axis, space: narrow ? 70 : 80, values: ticks(utc), size: 30 },
          { ...axis, size: (_u, values) => Math.max(44, 14 + 7 * Math.max(0, ...(values ?? []).map((v) => v.length))), values: (_u, v) => v.map((n) => (latest.current.format ?? short)(n)), space: 36 },
        ],
        series: [
          {},
          ...p.lines.map((l) => ({
            label: l.label, stroke: l.colour, width: p.lines.length > 60 ? 1 : 1.6, show: !l.hidden, spanGaps: false,
            fill: p.area ? l.colour + '22' : undefined,
            points: { show: lonely, size: 5, fill: l.colour },
          })),
        ],
        hooks: {
          setCursor: [(u) => setHover(look(u, latest.current))],
          setSelect: [(u) => {
            if (u.select.width > 4) latest.current.onZoom?.(u.posToVal(u.select.left, 'x'), u.posToVal(u.select.left + u.select.width, 'x'));
            u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          }],
          draw: [(u) => drawMarks(u, latest.current.marks ?? [])],
        },
      },
      data(p),
      holder.current,
    );
    plot.current = u;
    return () => {
      plot.current = null;
      setHover(null);
      u.destroy();
    };
  }, [shape, width > 0]);

  useEffect(() => plot.current?.setSize({ width, height: p.height }), [width, p.height]);
  useEffect(() => plot.current?.setData(data(p)), [p.times, p.lines, p.marks, p.range?.[0], p.range?.[1]]);

  const keys = (e: KeyboardEvent) => {
    const u = plot.current;
    if (!u || !p.onZoom || !['ArrowLeft', 'ArrowRight', '+', '=', '-'].includes(e.key)) return;
    const [lo, hi] = [u.scales.x.min ?? 0, u.scales.x.max ?? 1];
    const quarter = (hi - lo) / 4;
    const [a, b] = e.key === 'ArrowLeft' ? [-1, -1] : e.key === 'ArrowRight' ? [1, 1] : e.key === '-' ? [-2, 2] : [1, -1];
    e.preventDefault();
    p.onZoom(lo + a * quarter, hi + b * quarter);
  };

  return (
    <div class="plot" ref={ref} tabIndex={p.onZoom ? 0 : -1} role="img" aria-label={p.label} onKeyDown={keys}>
      <div ref={holder} />
      {hover && <Tip hover={hover} width={width} format={p.format ?? short} utc={utc} />}
    </div>
  );
}

function Tip({ hover, width, format, utc }: { hover: Hover; width: number; format: (v: number) => string; utc: boolean }) {
  const right = hover.left > width / 2;
  return (
    <div class="tip" style={{ top: hover.top + 'px', ...(right ? { right: width - hover.left + 14 + 'px' } : { left: hover.left + 14 + 'px' }) }}>
      <div class="tip-time">{date(hover.time * 1000, utc)} {clock(hover.time * 1000, utc)}</div>
      {hover.mark && <div class="tip-mark">◆ exemplar {hover.mark.text}</div>}
      {hover.rows.map((r) => (
        <div class={'tip-row' + (r.near ? ' near' : '')}>
          <i class="dot" style={{ background: r.colour }} />
          <span class="tip-label">{r.label}</span>
          <b>{format(r.value)}</b>
        </div>
      ))}
      {hover.more > 0 && <div class="tip-more">and {hover.more} more</div>}
    </div>
  );
}

// NaN and infinities have no place on the plot; tables show them.
function data(p: Props): uPlot.AlignedData {
  return [p.times, ...p.lines.map((l) => l.values.map(finite))] as uPlot.AlignedData;
}

/** yRange leaves room around the values, and includes 0 where it is near. */
export function yRange(lo: number | null, hi: number | null, fromZero: boolean): [number, number] {
  if (lo === null || hi === null || !Number.isFinite(lo) || !Number.isFinite(hi)) return [0, 1];
  if (lo === hi) {
    if (lo === 0) return [0, 1];
    const pad = Math.abs(lo) * 0.1;
    return lo > 0 ? [fromZero ? 0 : lo - pad, hi + pad] : [lo - pad, hi + pad];
  }
  const pad = (hi - lo) * 0.08;
  const low = lo >= 0 && (fromZero || lo < (hi - lo) * 0.6) ? 0 : lo - pad;
  const high = hi <= 0 && -hi < (hi - lo) * 0.6 ? 0 : hi + pad;
  return [low, high];
}

/** lonely shows points only for a line whose values have no neighbours: its line would not be seen. */
function lonely(u: uPlot, seriesIdx: number): boolean {
  const v = u.data[seriesIdx];
  for (let i = 0; i < v.length; i++) if (v[i] != null && v[i - 1] == null && v[i + 1] == null) return true;
  return false;
}

const SHOWN = 10;

function look(u: uPlot, p: Props): Hover | null {
  const { left, top, idx } = u.cursor;
  if (idx == null || left == null || top == null || left < 0 || top < 0) return null;
  const rows: Hover['rows'] = [];
  const distance = new Map<object, number>();
  p.lines.forEach((l, i) => {
    const v = u.data[i + 1]?.[idx];
    if (l.hidden || v == null) return;
    const row = { label: l.label, colour: l.colour, value: v, near: false };
    distance.set(row, Math.abs(u.valToPos(v, 'y') - top));
    rows.push(row);
  });
  rows.sort((a, b) => distance.get(a)! - distance.get(b)!);
  const shown = rows.slice(0, SHOWN);
  if (shown[0] && distance.get(shown[0])! < 40) shown[0].near = true;
  shown.sort((a, b) => b.value - a.value);
  const over = u.over;
  const mark = (p.marks ?? []).find((m) => Math.hypot(u.valToPos(m.time, 'x') - left, u.valToPos(m.value, 'y') - top) < 8);
  if (shown.length === 0 && !mark) return null;
  return { left: left + over.offsetLeft, top: Math.min(top + over.offsetTop + 8, Math.max(0, p.height - 40 - 20 * shown.length)), time: u.data[0][idx], rows: shown, more: rows.length - shown.length, mark };
}

function drawMarks(u: uPlot, marks: Mark[]) {
  const { ctx, bbox } = u;
  ctx.save();
  for (const m of marks) {
    const x = u.valToPos(m.time, 'x', true);
    const y = u.valToPos(m.value, 'y', true);
    if (x < bbox.left || x > bbox.left + bbox.width || y < bbox.top || y > bbox.top + bbox.height) continue;
    const r = 4.5 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x, y - r);
    ctx.lineTo(x + r, y);
    ctx.lineTo(x, y + r);
    ctx.lineTo(x - r, y);
    ctx.closePath();
    ctx.fillStyle = m.colour;
    ctx.strokeStyle = css('--surface');
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.fill();
    ctx.stroke();
  }
  ctx.restore();
}

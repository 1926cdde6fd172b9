// What a range query answers, laid out on its steps.
import type { Labels, QueryResult, Series } from './api';

/** Line is a series with one value a step; null where it has none. */
export interface Line {
  query: number; // which of the page's queries it is of
  metric: Labels;
  values: (number | null)[];
  histograms: number; // samples that are native histograms, which are not drawn
}

export interface Range {
  start: number; // seconds
  end: number;
  step: number;
}

/** number reads a value of the API. */
export function number(text: string): number {
  switch (text) {
    case '+Inf': return Infinity;
    case '-Inf': return -Infinity;
    default: return Number(text);
  }
}

export function steps(r: Range): number[] {
  const n = Math.floor((r.end - r.start) / r.step + 1e-9) + 1;
  return Array.from({ length: n }, (_, i) => Math.round((r.start + i * r.step) * 1000) / 1000);
}

export function lines(result: QueryResult, query: number, r: Range): Line[] {
  const n = steps(r).length;
  if (result.resultType !== 'matrix') return [];
  return (result.result as Series[]).map((s) => {
    const values: (number | null)[] = new Array(n).fill(null);
    for (const [t, v] of s.values ?? []) {
      const at = Math.round((t - r.start) / r.step);
      if (at >= 0 && at < n) values[at] = number(v);
    }
    return { query, metric: s.metric, values, histograms: s.histograms?.length ?? 0 };
  });
}

export interface Summary { last: number | null; min: number | null; max: number | null; mean: number | null }

/** summary goes by the finite values alone; last is the newest of any kind. */
export function summary(values: (number | null)[]): Summary {
  let min = Infinity, max = -Infinity, sum = 0, n = 0;
  let last: number | null = null;
  for (const v of values) {
    if (v === null) continue;
    last = v;
    if (!Number.isFinite(v)) continue;
    min = Math.min(min, v);
    max = Math.max(max, v);
    sum += v;
    n++;
  }
  return n > 0 ? { last, min, max, mean: sum / n } : { last, min: null, max: null, mean: null };
}

/** common finds the labels that all series share, where there are several. */
export function common(metrics: Labels[]): Labels {
  if (metrics.length < 2) return {};
  const shared: Labels = { ...metrics[0] };
  for (const m of metrics) for (const k of Object.keys(shared)) if (m[k] !== shared[k]) delete shared[k];
  return shared;
}

const STEPS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000];

/** autoStep is the least round step with which a range has some `points` steps. */
export function autoStep(range: number, points: number): number {
  const least = Math.max(range / Math.max(points, 50), range > 60 ? 1 : 0.001);
  return STEPS.find((s) => s >= least) ?? Math.ceil(least / 86400) * 86400;
}

/** align moves a range to multiples of its step, so that an answer keeps its steps as time goes on. */
export function align(from: number, to: number, step: number): Range {
  const end = Math.floor(to / step + 1e-9) * step;
  const start = Math.ceil(from / step - 1e-9) * step;
  const exact = (v: number) => Math.round(v * 1000) / 1000;
  return { start: exact(Math.min(start, end)), end: exact(end), step };
}

/**
 * csv writes lines as a table: a time a row, a series a column. Spreadsheets take a text that begins with = + - @ for a formula, and senders choose
 * names: an apostrophe goes before it, as OWASP advises. Values are numbers, which no sender words, and stay as they are.
 */
export function csv(r: Range, all: Line[], name: (l: Line) => string): string {
  const cell = (s: string) => '"' + s.replace(/^[=+\-@\t\r\n]/, "'$&").replace(/"/g, '""') + '"';
  const rows = [['time', ...all.map(name)].map(cell).join(',')];
  steps(r).forEach((t, i) => rows.push([new Date(t * 1000).toISOString(), ...all.map((l) => (l.values[i] === null ? '' : String(l.values[i])))].join(',')));
  return rows.join('\n') + '\n';
}

// Numbers, bytes and times for people. What is not known is `unknown`, never 0.

export const UNKNOWN = 'unknown';

type Maybe = number | null | undefined;

const SI = ['', 'k', 'M', 'G', 'T', 'P', 'E'];

/** short writes a number with some three digits: 12.3k, 0.00042. */
export function short(v: Maybe): string {
  if (v === null || v === undefined) return UNKNOWN;
  if (!Number.isFinite(v)) return Number.isNaN(v) ? 'NaN' : v > 0 ? '+Inf' : '-Inf';
  const abs = Math.abs(v);
  if (abs === 0) return '0';
  if (abs < 1e-4 || abs >= 1e21) return v.toExponential(2);
  if (abs < 1000) return trim(v.toPrecision(abs < 1 ? 3 : 4));
  const at = Math.min(Math.floor(Math.log10(abs) / 3), SI.length - 1);
  return trim((v / 1000 ** at).toPrecision(abs / 1000 ** at >= 1000 ? 6 : 4)) + SI[at];
}

function trim(s: string): string {
  return s.includes('.') && !s.includes('e') ? s.replace(/\.?0+$/, '') : s;
}

const grouped = new Intl.NumberFormat('en-US');

/** count writes a whole number with separators. */
export function count(v: Maybe): string {
  return v === null || v === undefined ? UNKNOWN : grouped.format(Math.round(v));
}

/** brief writes how many came of things that come whole, as a mean may say it: 0.3, 2.9, 508. */
export function brief(v: Maybe): string {
  return v === null || v === undefined ? UNKNOWN : v < 10 ? trim(v.toFixed(1)) : v < 10_000 ? count(v) : short(v);
}

/** some writes a number of things. */
export function some(v: Maybe, what: string): string {
  return `${count(v)} ${what}${v === 1 ? '' : 's'}`;
}

const BINARY = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

export function bytes(v: Maybe): string {
  if (v === null || v === undefined) return UNKNOWN;
  let at = 0;
  let n = v;
  for (; Math.abs(n) >= 1024 && at < BINARY.length - 1; at++) n /= 1024;
  return (at === 0 ? String(Math.round(n)) : n < 10 ? n.toFixed(2) : n < 100 ? n.toFixed(1) : n.toFixed(0)) + ' ' + BINARY[at];
}

export function perSecond(v: Maybe): string {
  if (v === null || v === undefined) return UNKNOWN;
  return (v === 0 ? '0' : v < 0.01 ? '<0.01' : v < 10 ? trim(v.toFixed(2)) : short(v)) + '/s';
}

const UNITS: [number, string][] = [[365 * 86400, 'y'], [7 * 86400, 'w'], [86400, 'd'], [3600, 'h'], [60, 'm'], [1, 's']];

/** duration writes seconds as Prometheus does, exactly where it can: 1h30m, 250ms. */
export function duration(seconds: number): string {
  if (seconds === 0) return '0s';
  const millis = Math.round(seconds * 1000);
  if (millis < 1000) return millis > 0 ? `${millis}ms` : `${(seconds * 1e6).toFixed(0)}µs`;
  let rest = Math.floor(millis / 1000);
  let out = '';
  for (const [size, name] of UNITS) {
    if ((name === 'y' || name === 'w') && rest % size !== 0) continue; // 10d, not 1w3d
    const n = Math.floor(rest / size);
    if (n > 0) out += n + name;
    rest -= n * size;
  }
  return out + (millis % 1000 ? `${millis % 1000}ms` : '');
}

/** about writes seconds with two units at most. */
export function about(seconds: number): string {
  if (seconds < 1) return duration(seconds);
  if (seconds < 10) return seconds.toFixed(1) + ' s';
  const units: [number, string][] = [[365.25 * 86400, 'y'], [86400, 'd'], [3600, 'h'], [60, 'm'], [1, 's']];
  const i = units.findIndex(([size]) => seconds >= size);
  const [size, name] = units[i];
  const n = Math.floor(seconds / size);
  const next = units[i + 1];
  const rest = next ? Math.floor((seconds - n * size) / next[0]) : 0;
  return n + ' ' + name + (next && rest > 0 && n < 10 ? ` ${rest} ${next[1]}` : '');
}

/** seconds reads a duration: 5m, 1h30m, 15. NaN: it is none. */
export function seconds(text: string): number {
  const t = text.trim();
  if (/^\d+(\.\d+)?$/.test(t)) return Number(t);
  if (!/^(\d+(ms|[smhdwy]))+$/.test(t)) return NaN;
  const size: Record<string, number> = { ms: 0.001, s: 1, m: 60, h: 3600, d: 86400, w: 604800, y: 31536000 };
  return [...t.matchAll(/(\d+)(ms|[smhdwy])/g)].reduce((sum, m) => sum + Number(m[1]) * size[m[2]], 0);
}

const two = (n: number) => String(n).padStart(2, '0');

interface Parts { y: number; mo: number; d: number; h: number; mi: number; s: number; ms: number }

export function parts(millis: number, utc: boolean): Parts {
  const t = new Date(millis);
  return utc
    ? { y: t.getUTCFullYear(), mo: t.getUTCMonth() + 1, d: t.getUTCDate(), h: t.getUTCHours(), mi: t.getUTCMinutes(), s: t.getUTCSeconds(), ms: t.getUTCMilliseconds() }
    : { y: t.getFullYear(), mo: t.getMonth() + 1, d: t.getDate(), h: t.getHours(), mi: t.getMinutes(), s: t.getSeconds(), ms: t.getMilliseconds() };
}

/** date and clock write the parts of a time; time both, with a space between. */
export function date(millis: number, utc: boolean): string {
  const p = parts(millis, utc);
  return `${String(p.y).padStart(4, '0')}-${two(p.mo)}-${two(p.d)}`;
}

export function clock(millis: number, utc: boolean, milliseconds = false): string {
  const p = parts(millis, utc);
  return `${two(p.h)}:${two(p.mi)}:${two(p.s)}` + (milliseconds || p.ms ? '.' + String(p.ms).padStart(3, '0') : '');
}

export function time(millis: Maybe, utc: boolean): string {
  if (millis === null || millis === undefined) return UNKNOWN;
  if (!Number.isFinite(millis) || Math.abs(millis) > 8.64e15) return millis > 0 ? 'the end of time' : 'the beginning of time';
  return `${date(millis, utc)} ${clock(millis, utc)}`;
}

/** parseTime reads what time writes, seconds since 1970, now, now-1h. The answer is in seconds; NaN: it is none. */
export function parseTime(text: string, utc: boolean, now = Date.now() / 1000): number {
  const t = text.trim();
  if (t === 'now') return now;
  const relative = /^now\s*-\s*(.+)$/.exec(t);
  if (relative) return now - seconds(relative[1]);
  if (/^-?\d+(\.\d+)?$/.test(t)) return Math.abs(Number(t)) > 1e11 ? Number(t) / 1000 : Number(t);
  const m = /^(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ](\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?)?(Z)?$/.exec(t);
  if (!m) return NaN;
  const [y, mo, d, h, mi, s] = [1, 2, 3, 4, 5, 6].map((i) => Number(m[i] ?? 0));
  return (utc || m[7] ? Date.UTC(y, mo - 1, d, h, mi, 0) : new Date(y, mo - 1, d, h, mi, 0).getTime()) / 1000 + s;
}

const bare = /^[a-zA-Z_][a-zA-Z0-9_]*$/;

/** series writes labels as PromQL does; but leaves out the names in `without`. */
export function series(metric: Record<string, string>, without?: Set<string>): string {
  const name = metric.__name__ ?? '';
  const pairs = Object.keys(metric)
    .filter((k) => k !== '__name__' && !without?.has(k))
    .sort()
    .map((k) => `${bare.test(k) ? k : JSON.stringify(k)}=${JSON.stringify(metric[k])}`);
  if (pairs.length === 0) return (without?.has('__name__') ? '' : name) || '{}';
  return `${without?.has('__name__') ? '' : name}{${pairs.join(', ')}}`;
}

/** ago writes how long before now a moment was, both as RFC 3339. */
export function ago(iso: string | null, now: string): string {
  if (!iso) return 'unknown';
  const s = (Date.parse(now) - Date.parse(iso)) / 1000;
  return s < 0 ? `${about(-s)} ahead` : s < 1 ? 'now' : `${about(s)} ago`;
}

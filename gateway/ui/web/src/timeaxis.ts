// The compressed time axis: time without partitions takes little room, and long partitions do not hide short ones.

/** Axis maps seconds to 0…1 piece by piece. */
export interface Axis {
  edges: number[]; // seconds, rising
  at: number[]; // of each edge, 0…1
  gaps: { from: number; to: number }[]; // pieces that no partition covers
}

interface Span { lo: number; hi: number }

/** A covered piece has between LEAST and MOST times the room of the median one, a gap GAP times it, and GAP_SHARE of all at most. */
const LEAST = 0.35;
const MOST = 4;
const GAP = 0.9;
const GAP_SHARE = 0.04;

/**
 * timeAxis lays spans out. With `linear` it is time as it is. Else a covered piece gets room by its length, between LEAST
 * and MOST times the median piece, and a gap GAP times it, however long it is.
 */
export function timeAxis(spans: Span[], linear: boolean): Axis {
  const edges = [...new Set(spans.flatMap((s) => [s.lo, s.hi]))].sort((a, b) => a - b);
  if (edges.length < 2) return { edges: [0, 1], at: [0, 1], gaps: [] };
  // How many spans cover each piece: +1 where one begins, −1 where it ends.
  const index = new Map(edges.map((e, i) => [e, i]));
  const change = new Array(edges.length).fill(0);
  for (const s of spans) {
    change[index.get(s.lo)!]++;
    change[index.get(s.hi)!]--;
  }
  let depth = 0;
  const covered = edges.slice(0, -1).map((_, i) => (depth += change[i]) > 0);
  const lengths = edges.slice(0, -1).map((e, i) => edges[i + 1] - e);
  const sorted = lengths.filter((_, i) => covered[i]).sort((a, b) => a - b);
  const median = sorted[Math.floor(sorted.length / 2)] || 1;
  const room = lengths.map((l) => Math.min(MOST, Math.max(LEAST, l / median)));
  const gapMost = Math.min(GAP, GAP_SHARE * room.reduce((a, w, i) => a + (covered[i] ? w : 0), 0));
  const weights = lengths.map((l, i) => (linear ? l : covered[i] ? room[i] : Math.min(gapMost, l / median)));
  const sum = weights.reduce((a, b) => a + b, 0);
  let so = 0;
  const at = [0, ...weights.map((w) => (so += w) / sum)];
  const gaps = lengths.flatMap((_, i) => (!covered[i] ? [{ from: edges[i], to: edges[i + 1] }] : []));
  return { edges, at, gaps };
}

function piece(sorted: number[], v: number): number {
  let lo = 0, hi = sorted.length - 2;
  while (lo < hi) {
    const mid = (lo + hi + 1) >> 1;
    if (sorted[mid] <= v) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

export function toShare(a: Axis, t: number): number {
  const i = piece(a.edges, t);
  const f = (t - a.edges[i]) / (a.edges[i + 1] - a.edges[i]);
  return a.at[i] + Math.min(1, Math.max(0, f)) * (a.at[i + 1] - a.at[i]);
}

export function toTime(a: Axis, share: number): number {
  const i = piece(a.at, share);
  const width = a.at[i + 1] - a.at[i];
  return a.edges[i] + (width > 0 ? Math.min(1, Math.max(0, (share - a.at[i]) / width)) : 0) * (a.edges[i + 1] - a.edges[i]);
}

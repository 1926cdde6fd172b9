// The rows that each server took lately, as this page saw it. It begins when the page is opened, and is bounded.
import { useEffect } from 'preact/hooks';
import { useValue, Value } from './store';
import type { Status } from './types';

const POINTS = 240; // 20 minutes
const GAP = 30; // seconds without an answer: a mean over longer would hide what was between

interface Point { at: number; since: string; grown: Map<string, number> }

const points = new Value<Point[]>([]);

function record(s: Status) {
  const all = points.get();
  const at = Date.parse(s.now) / 1000;
  if (!s.grown_since || (all.length > 0 && at <= all[all.length - 1].at)) return;
  const grown = new Map<string, number>();
  for (const x of s.servers) if (x.grown !== null) grown.set(x.id, x.grown);
  points.set([...all.slice(1 - POINTS), { at, since: s.grown_since, grown }]);
}

/** useRecording keeps the history while the page is open, whichever view is shown. */
export function useRecording(status?: Status) {
  useEffect(() => { if (status) record(status); }, [status]);
}

export interface Rates { times: number[]; of: (server: string) => (number | null)[] }

/** useServerRates gives rows a second between two answers of one process. null: one of them is missing. */
export function useServerRates(): Rates {
  const all = useValue(points);
  return {
    times: all.slice(1).map((p) => p.at),
    of: (server) => all.slice(1).map((p, i) => {
      const was = all[i];
      const [a, b] = [was.grown.get(server), p.grown.get(server)];
      return a === undefined || b === undefined || b < a || was.since !== p.since || p.at - was.at > GAP ? null : (b - a) / (p.at - was.at);
    }),
  };
}

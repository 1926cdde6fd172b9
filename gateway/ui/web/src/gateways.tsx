// A gateway knows its own rates. Those of all gateways of a cluster are in the table of the processes' metrics, for readers of it.
import { get, ofTable, type QueryResult, type Sample, type Series } from './api';
import { number } from './result';
import { usePoll } from './store';
import { count } from './format';
import type { Status } from './types';

/** METRICS is the table into which processes write their own metrics. */
export const METRICS = '_spillway';

/** All are sums over gateways, means of the last minute. null: unknown. */
export interface All { gateways: number | null; samples: number | null; queries: number | null; newSeries: number | null; refused: number | null; bytes: number | null }

const UNKNOWN_ALL: All = { gateways: null, samples: null, queries: null, newSeries: null, refused: null, bytes: null };

async function value(query: string, signal: AbortSignal): Promise<number | null> {
  const { data } = await get<QueryResult>(ofTable(METRICS, 'query'), { query }, signal);
  const one = (data.result as Series[])[0]?.value as Sample | undefined;
  return one ? number(one[1]) : null;
}

/** useAll asks for the sums of all tables, or of one. undefined: there is one process, which knows all. */
export function useAll(status: Status, table = ''): All | undefined {
  const cluster = status.role === 'gateway';
  const readable = cluster && status.tables.some((t) => t.name === METRICS);
  const { data, error } = usePoll<All>(`all ${readable} ${table}`, readable ? 15 : 0, async (signal) => {
    if (!readable) return UNKNOWN_ALL;
    const of = (more = '') => `{${[table && `table=${JSON.stringify(table)}`, more].filter(Boolean).join(', ')}}`;
    const rate = (name: string, labels: string) => value(`sum(rate(spillway_limits_${name}_total${labels}[1m]))`, signal);
    const [gateways, samples, queries, newSeries, refused, bytes] = await Promise.all([
      value('count(count_over_time(spillway_limits_tables[1m]))', signal),
      rate('accepted_samples', of()), rate('queries', of()), rate('new_series', of()), rate('refused', of('mode="enforced"')), rate('body_bytes', of()),
    ]);
    return { gateways, samples, queries, newSeries, refused: refused ?? (samples === null ? null : 0), bytes };
  });
  return cluster ? (!error && data) || UNKNOWN_ALL : undefined;
}

/** ofAll is the note below a figure of one gateway. */
export const ofAll = (all: All | undefined, v: number | null | undefined, write: (v: number) => string) => (all === undefined ? undefined : `all gateways: ${v === null || v === undefined ? 'unknown' : write(v)}`);

/** Scope says whose figures are shown; nothing where there is one process. */
export function Scope({ all, what }: { all: All | undefined; what: string }) {
  if (all === undefined) return null;
  return (
    <p class="dim scope" id="scope">
      {what} are of the gateway that answers, not of the cluster.{' '}
      {all.gateways === null ? `Sums over all gateways are unknown: they are in table ${METRICS}, where the gateways write it and you may read it.`
        : <>Sums over {all.gateways === 1 ? 'the one gateway' : `${count(all.gateways)} gateways`} are means of the last minute, from table {METRICS}.</>}
    </p>
  );
}

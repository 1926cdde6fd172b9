// Who writes: the last senders of a table, and who made the series of its metric names.
import { get, type Answer } from './api';
import { about, brief, count, time } from './format';
import { Loading, Problem } from './parts';
import { usePoll, useUTC, type Polled } from './store';
import type { SenderLists, SenderUse, TableSenders } from './types';

export const PROTOCOLS: Record<string, string> = { rw1: 'remote write 1', rw2: 'remote write 2', influx1: 'Influx v1', influx2: 'Influx v2', influx3: 'Influx v3', otlp: 'OTLP', kafka: 'Kafka', other: 'other' };

const NONE: TableSenders = { table: '', senders: [], senders_left_out: 0, names: [], names_left_out: 0 };

export const useSenders = (table: string) => usePoll<Answer<SenderLists>>('senders ' + table, 15, (signal) => get<SenderLists>('api/v1/status/senders', { table }, signal));

export const sendersOf = (p: Polled<Answer<SenderLists>>, table: string): TableSenders | undefined => p.data && (p.data.data.tables.find((t) => t.table === table) ?? NONE);

/** agent is a sender in a few words: its program without what follows, or its protocol. */
const agent = (s: SenderUse) => (s.protocol === 'kafka' ? `topic ${s.agent}` : s.agent.split(' ')[0] || PROTOCOLS[s.protocol] || s.protocol);

const short = (s: SenderUse) => (s.identity ? `${agent(s)} as ${s.identity}` : agent(s));

const whole = (s: SenderUse) => [PROTOCOLS[s.protocol] ?? s.protocol, s.agent, s.identity && `as ${s.identity}`, s.network && `from ${s.network}`].filter(Boolean).join(' · ');

export interface Writers { text: string; title: string; newSeries: number; perMinute: number }

/** writers says in one line who made the last new series of each name; names that the process does not know are missing. */
export function writers(t: TableSenders | undefined): Map<string, Writers> {
  const out = new Map<string, Writers>();
  for (const n of t?.names ?? []) {
    const by = n.by.map((p) => t!.senders[p.sender]);
    if (by.length === 0) continue;
    out.set(n.name, { text: short(by[0]) + (by.length > 1 ? ` and ${by.length - 1} more` : ''), title: n.by.map((p, i) => `${whole(by[i])}: ${count(p.new_series)} new series`).join('\n'), newSeries: n.new_series, perMinute: n.new_series_per_minute });
  }
  return out;
}

export function WrittenBy({ table, polled, role }: { table: string; polled: Polled<Answer<SenderLists>>; role: string }) {
  const utc = useUTC();
  const t = sendersOf(polled, table);
  const now = Date.now();
  return (
    <section class="card" id="written-by">
      <h2>Written by</h2>
      <p class="dim">The last senders to table {table}, as this {role === 'gateway' ? 'gateway, not its neighbours, saw' : 'process saw'} them since its start. A series is new when it is first seen here; a minute are those of the last one.</p>
      {polled.error && !t ? <Problem error={polled.error} /> : !t ? <Loading what="Asking who writes" /> : t.senders.length === 0 ? <p class="dim">Nobody has written since the start.</p> : (
        <div class="scroll"><table>
          <thead><tr><th>protocol</th><th>token or user</th><th>client</th><th>network</th><th class="n">rows</th><th class="n">requests</th><th class="n">new series</th><th class="n">a minute</th><th class="n">last</th></tr></thead>
          <tbody>{t.senders.map((s) => (
            <tr key={whole(s)} data-agent={s.agent}>
              <td class="t">{PROTOCOLS[s.protocol] ?? s.protocol}</td><td>{s.identity || <span class="faint">–</span>}</td><td class="agent" title={s.agent}>{s.protocol === 'kafka' ? `topic ${s.agent}` : s.agent || <span class="faint">–</span>}</td>
              <td class="t">{s.network || <span class="faint">–</span>}</td><td class="n">{count(s.rows)}</td><td class="n">{count(s.requests)}</td><td class="n">{count(s.new_series)}</td><td class="n">{brief(s.new_series_per_minute)}</td>
              <td class="n" title={time(Date.parse(s.last), utc)}>{now - Date.parse(s.last) < 2000 ? 'now' : `${about((now - Date.parse(s.last)) / 1000)} ago`}</td>
            </tr>
          ))}</tbody>
        </table></div>
      )}
      {t && t.senders_left_out + t.names_left_out > 0 && <p class="dim">Left out: {[t.senders_left_out > 0 && `${count(t.senders_left_out)} senders that wrote longer ago`, t.names_left_out > 0 && `${count(t.names_left_out)} names with few new series`].filter(Boolean).join(', ')}.</p>}
    </section>
  );
}

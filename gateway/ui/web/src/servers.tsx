// Storage servers: are they there, how full, is anything damaged.
import { about, bytes, count, perSecond, short, some, time } from './format';
import { Bar, Known } from './parts';
import { useServerRates } from './history';
import { COLOURS, Plot } from './plot';
import { useUTC } from './store';
import type { Server, Status, Topic } from './types';

export function Servers({ status }: { status: Status }) {
  if (!status.whole) return <main><section class="card"><p class="dim">Servers are shown to those who may read every table.</p></section></main>;
  return (
    <main>
      {status.role === 'gateway' && <Taken servers={status.servers} />}
      <div class="cards">{status.servers.map((s) => <ServerCard key={s.id} s={s} />)}</div>
      {(status.topics ?? []).length > 0 && <Kafka topics={status.topics!} />}
      {status.coordination_age_ns >= 0 && <p class="dim">The coordination store answered {about(status.coordination_age_ns / 1e9)} ago.</p>}
    </main>
  );
}

const DRAWN = 30; // servers; nobody tells more lines apart

/** Taken draws which servers take the rows, so that one sees a load that wanders from one to the next, and one that is spread. */
function Taken({ servers }: { servers: Server[] }) {
  const { times, of } = useServerRates();
  const lines = servers.slice(0, DRAWN).map((s, i) => ({ label: s.id, colour: COLOURS[(i * 3) % COLOURS.length], values: of(s.id) }));
  const last = (values: (number | null)[]) => values[values.length - 1] ?? null;
  return (
    <section class="card" id="taken">
      <h2>Rows a second of each server</h2>
      <p class="dim">By how much the partitions that each server leads grow, of all tables, since this page was opened. Rows that wait on their way to a narrow partition count when they arrive there.</p>
      {times.length < 2 ? <p class="dim quiet">The page looks every five seconds; the lines begin at the third time.</p>
        : <Plot times={times} lines={lines} height={190} label="Rows a second of each server" range={[times[0], times[times.length - 1]]} />}
      <p class="keys">{lines.map((l) => <span key={l.label} data-taken={l.label}><i class="dot" style={{ background: l.colour }} /> {l.label} <Known text={perSecond(last(l.values))} /></span>)}</p>
      {servers.length > DRAWN && <p class="dim">and {count(servers.length - DRAWN)} more servers</p>}
    </section>
  );
}

function ServerCard({ s }: { s: Server }) {
  const utc = useUTC();
  const used = s.disk ? 1 - s.disk.free / s.disk.total : 0;
  return (
    <section class={'card server' + (s.live ? '' : ' silent')} data-server={s.id}>
      <h2><i class={'lamp ' + (s.live ? 'good' : 'bad')} />{s.id}<span class="dim">{s.live ? (s.draining ? 'draining' : 'live') : 'no heartbeat'}</span></h2>
      <p class="dim">{[s.addr, s.host && `host ${s.host}`, s.zone && `zone ${s.zone}`].filter(Boolean).join(' · ') || 'in this process'}</p>
      <dl>
        <dt>memory for new rows</dt><dd>{s.load === null ? <Known text="unknown" /> : <><Bar share={s.load} kind={s.load > 0.9 ? 'bad' : s.load > 0.75 ? 'warn' : undefined} />{(s.load * 100).toFixed(0)} %</>}</dd>
        <dt>leads</dt><dd>{some(s.leads, 'partition')}</dd>
        <dt>their size</dt><dd><Known text={bytes(s.bytes)} /></dd>
        <dt>disk</dt><dd>{s.disk ? <><Bar share={used} kind={used > 0.95 ? 'bad' : used > 0.85 ? 'warn' : undefined} />{bytes(s.disk.free)} free of {bytes(s.disk.total)}</> : s.room ? `room for ${bytes(s.room)}` : <Known text="unknown" />}</dd>
        <dt>damaged partitions</dt><dd>{s.damaged === null ? <Known text="unknown" /> : s.damaged > 0 ? <b class="bad-text">{count(s.damaged)}</b> : 'none'}</dd>
        {s.scrub && <><dt>scrub</dt><dd><Bar share={s.scrub.segments > 0 ? s.scrub.checked / s.scrub.segments : 0} />{count(s.scrub.checked)} of {count(s.scrub.segments)} segments · {bytes(s.scrub.bytes_per_second)}/s{!s.scrub.pass_ended.startsWith('0001') && <span class="dim"> · last whole pass {time(Date.parse(s.scrub.pass_ended), utc).slice(0, 19)}</span>}</dd></>}
      </dl>
    </section>
  );
}

function Kafka({ topics }: { topics: Topic[] }) {
  return (
    <section class="card">
      <h2>Kafka</h2>
      <div class="scroll"><table>
        <thead><tr><th>topic</th><th class="n">partition</th><th>group</th><th class="n">lag</th><th class="n">committed</th><th class="n">rows</th><th class="n">rate</th><th class="n">poison</th><th /></tr></thead>
        <tbody>{topics.map((t) => (
          <tr key={`${t.cluster}/${t.group}/${t.topic}/${t.partition}`}>
            <td>{t.topic}</td><td class="n">{t.partition}</td><td>{t.group}</td><td class="n"><Known text={t.lag < 0 ? 'unknown' : count(t.lag)} /></td><td class="n">{count(t.committed)}</td>
            <td class="n">{short(t.rows)}</td><td class="n">{perSecond(t.rows_per_second)}</td><td class="n">{t.poison > 0 ? <b class="bad-text">{count(t.poison)}</b> : '0'}</td><td>{[t.paused && 'paused', t.last_error].filter(Boolean).join(' ')}</td>
          </tr>
        ))}</tbody>
      </table></div>
    </section>
  );
}

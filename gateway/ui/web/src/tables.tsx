// Tables: their sizes, the times of their rows, how long they keep them, how near they are to their limits.
import { useState } from 'preact/hooks';
import { get, type Answer } from './api';
import { about, ago, brief, bytes, count, duration, perSecond, short, time } from './format';
import { Forecasts } from './forecast';
import { METRICS, ofAll, Scope, useAll } from './gateways';
import { Bar, Button, Empty, Figure, Known, Menu } from './parts';
import { href, usePoll, useUTC } from './store';
import type { Staged, Status, Table, TableUse } from './types';

export function useTableUse(period = 5) {
  return usePoll<Answer<TableUse[]>>('tables', period, (signal) => get<TableUse[]>('api/v1/status/tables', {}, signal));
}

const sum = (all: (number | null)[]) => (all.some((v) => v === null) ? null : all.reduce<number>((a, v) => a + (v ?? 0), 0));

export function Tables({ status, table }: { status: Status; table: string }) {
  const uses = useTableUse();
  const byName = new Map((uses.data?.data ?? []).map((u) => [u.table, u]));
  const known = uses.data !== undefined;
  const utc = useUTC();
  const all = useAll(status);
  if (status.tables.length === 0) return <main><section class="card"><Empty title="No table yet">The first write makes one.</Empty></section></main>;
  const one = status.tables.find((t) => t.name === table);
  return (
    <main>
      <div class="figures card">
        <Figure label="tables" value={count(status.tables.length)} />
        <Figure label="rows" value={short(sum(status.tables.map((t) => t.rows)))} id="rows" />
        <Figure label="size" value={bytes(sum(status.tables.map((t) => t.bytes)))} id="bytes" />
        <Figure label="partitions" value={count(sum(status.tables.map((t) => t.partition_count)))} />
        <Figure label="samples" value={known ? perSecond([...byName.values()].reduce((n, u) => n + u.samplesPerSecond, 0)) : 'unknown'} note={ofAll(all, all?.samples, perSecond)} />
        <Figure label="queries" value={known ? perSecond([...byName.values()].reduce((n, u) => n + u.queriesPerSecond, 0)) : 'unknown'} note={ofAll(all, all?.queries, perSecond)} />
      </div>
      <Scope all={all} what="Active and new series, samples, bodies, queries, refusals and limits" />
      <section class="card">
        <div class="scroll">
          <table id="tables">
            <thead><tr><th>table</th><th class="n">rows</th><th class="n">size</th><th class="n">oldest row</th><th class="n">newest row</th><th class="n">kept</th><th class="n">partitions</th><th class="n">active series</th><th class="n">samples</th><th class="n">queries</th></tr></thead>
            <tbody>
              {status.tables.map((t) => {
                const u = byName.get(t.name);
                const rate = (v: number | undefined) => (known ? (v === undefined ? 0 : v) : null);
                return (
                  <tr key={t.name} class={t.name === table ? 'chosen' : ''} data-table={t.name}>
                    <td><a href={href('tables', { table: t.name })}>{t.name}</a></td>
                    <td class="n"><Known text={t.rows === null ? 'unknown' : count(t.rows)} /></td>
                    <td class="n"><Known text={bytes(t.bytes)} /></td>
                    <td class="n" title={t.oldest ? time(Date.parse(t.oldest), utc) : ''}>{rowTime(t, t.oldest, status.now)}</td>
                    <td class="n" title={t.newest ? time(Date.parse(t.newest), utc) : ''}>{rowTime(t, t.newest, status.now)}</td>
                    <td class="n">{kept(t)}</td>
                    <td class="n">{count(t.partition_count)}</td>
                    <td class="n"><Known text={known ? count(u?.activeSeries ?? 0) : 'unknown'} /></td>
                    <td class="n">{t.name === METRICS ? OWN : <Known text={perSecond(rate(u?.samplesPerSecond))} />}</td>
                    <td class="n"><Known text={perSecond(rate(u?.queriesPerSecond))} /></td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      </section>
      {one && <Details t={one} u={byName.get(one.name)} status={status} known={known} />}
      {one && status.role !== 'standalone' && <Forecasts table={one.name} />}
    </main>
  );
}

/** OWN stands where a table has rows that no request brought. */
const OWN = <span class="dim" title="Processes write their own metrics into this table, and what requests bring is counted.">not counted</span>;

export const kept = (t: Table) => (t.retention_ns > 0 ? duration(t.retention_ns / 1e9) : 'for ever');

function rowTime(t: Table, at: string | null, now: string) {
  if (t.rows === 0) return <span class="faint">–</span>;
  return <Known text={ago(at, now)} />;
}

function Details({ t, u, status, known }: { t: Table; u?: TableUse; status: Status; known: boolean }) {
  const utc = useUTC();
  const uses = u?.uses ?? u?.near ?? [];
  const refused = Object.entries(u?.refused ?? {}).filter(([, n]) => n > 0);
  return (
    <section class="card" id="table-details">
      <h2>{t.name}</h2>
      <div class="columns">
        <dl>
          <dt>rows</dt><dd><Known text={count(t.rows)} />{t.unknown_partitions > 0 && <span class="dim"> · of {count(t.unknown_partitions)} partitions it is not known how many</span>}</dd>
          <dt>size</dt><dd><Known text={bytes(t.bytes)} />{t.rows !== null && t.bytes !== null && t.rows > 0 && <span class="dim"> · {(t.bytes / t.rows).toFixed(1)} bytes a row</span>}</dd>
          <dt>oldest row</dt><dd>{t.rows === 0 ? 'none' : <><Known text={time(t.oldest ? Date.parse(t.oldest) : null, utc)} />{t.oldest && <span class="dim"> · {ago(t.oldest, status.now)}</span>}</>}</dd>
          <dt>newest row</dt><dd>{t.rows === 0 ? 'none' : <><Known text={time(t.newest ? Date.parse(t.newest) : null, utc)} />{t.newest && <span class="dim"> · {ago(t.newest, status.now)}</span>}</>}</dd>
          <dt>kept</dt><dd>{kept(t)}</dd>
          <dt>partitions</dt><dd>{count(t.partition_count)} of {t.partition_width_ns > 0 ? about(t.partition_width_ns / 1e9) : 'any width'}</dd>
          {t.replicas > 1 && <><dt>copies</dt><dd id="copies">{t.replicas} of each row<span class="dim"> · {t.min_in_sync} before it is acknowledged</span></dd></>}
          {status.role !== 'standalone' && <><dt>smearing</dt><dd id="smear">{t.smear ? <>{t.smear.setting} · {t.smear.window_ns > 0 ? `rows wait up to ${about(t.smear.window_ns / 1e9)}` : 'rows do not wait'}<span class="dim"> · {t.smear.why}</span></> : 'off'} <SmearSwitch table={t.name} on={t.smear !== undefined} /></dd></>}
          {t.staged && t.staged.length > 0 && <><dt>rows that wait</dt><dd>{count(sum(t.staged.map((x) => x.rows)))} · {bytes(sum(t.staged.map((x) => x.bytes)))}<span class="dim"> · copies counted</span></dd></>}
          <dt>map</dt><dd>version {count(t.seq)}</dd>
        </dl>
        <dl>
          <dt>active series</dt><dd><Known text={known ? count(u?.activeSeries ?? 0) : 'unknown'} /></dd>
          <dt>new series</dt><dd><Known text={known ? `${brief((u?.newSeriesPerSecond ?? 0) * 60)} a minute` : 'unknown'} /></dd>
          <dt>samples</dt><dd>{t.name === METRICS ? OWN : <><Known text={known ? perSecond(u?.samplesPerSecond ?? 0) : 'unknown'} />{u && <span class="dim"> · {count(u.samples)} since the start</span>}</>}</dd>
          <dt>bodies</dt><dd>{t.name === METRICS ? OWN : <Known text={known ? bytes(u?.bytesPerSecond ?? 0) + '/s' : 'unknown'} />}</dd>
          <dt>queries</dt><dd><Known text={known ? perSecond(u?.queriesPerSecond ?? 0) : 'unknown'} />{u && u.queriesRunning > 0 && <span class="dim"> · {u.queriesRunning} running</span>}</dd>
          <dt>refused</dt><dd>{!known ? <Known text="unknown" /> : refused.length === 0 ? 'nothing' : refused.map(([limit, n]) => <div key={limit}>{limit} <b class="bad-text">{count(n)}</b></div>)}</dd>
        </dl>
        <dl class="limits">
          <dt class="wide">limits{u?.dryRun && ' (dry run: nothing is refused)'}</dt>
          {!known ? <dd><Known text="unknown" /></dd> : uses.length === 0 ? <dd class="wide dim">none is set for rates, series and queries</dd>
            : uses.map((x) => <><dt>{x.limit}</dt><dd><Bar share={x.used} kind={x.used >= 0.95 ? 'bad' : x.used >= 0.8 ? 'warn' : undefined} />{short(x.value)} of {short(x.max)}</dd></>)}
        </dl>
      </div>
      {t.staged && t.staged.length > 0 && <Waiting all={t.staged} now={status.now} />}
      <p class="links"><a href={href('explore', { table: t.name })}>explore</a><a href={href('cardinality', { table: t.name })}>cardinality</a><a href={href('partitions', { table: t.name })}>partitions</a></p>
    </section>
  );
}

/** SmearSwitch gives the command that switches smearing: a page may not ask the port that carries out orders of administrators. */
function SmearSwitch({ table, on }: { table: string; on: boolean }) {
  const [copied, set] = useState(false);
  const command = `spillway table set ${table} --smear=${on ? 'off' : 'auto'}`;
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(command);
      set(true);
      setTimeout(() => set(false), 1500);
    } catch {
      prompt('The command:', command);
    }
  };
  return (
    <Menu small label={on ? 'Switch it off' : 'Switch it on'}>
      {() => (
        <div class="switch">
          <p>Tables are changed by administrators, on a port that no page may ask. In a shell with their certificate, and SPILLWAY_SERVERS or --coord:</p>
          <pre class="code">{command}</pre>
          <Button small icon="copy" label={copied ? 'Copied' : 'Copy the command'} onClick={copy} />
          <p class="dim">{on ? 'Rows that wait still arrive, each at its time.' : 'Rows then wait on their way to partitions of less than a minute, so that all servers take some at once.'} <a href={href('servers')}>Servers</a> shows which take them.</p>
        </div>
      )}
    </Menu>
  );
}

// Waiting shows the rows that wait for their leader or their time, by server.
function Waiting({ all, now }: { all: Staged[]; now: string }) {
  return (
    <div class="scroll">
      <table id="staged">
        <thead><tr><th>rows that wait on</th><th class="n">rows</th><th class="n">size</th><th class="n">not due yet</th><th class="n">only there</th><th class="n">oldest</th><th class="n">waits for its leader since</th></tr></thead>
        <tbody>
          {all.map((x) => (
            <tr key={x.server} data-server={x.server}>
              <td>{x.server}</td>
              <td class="n">{count(x.rows)}</td>
              <td class="n">{bytes(x.bytes)}</td>
              <td class="n">{count(x.later_rows)}</td>
              <td class="n">{count(x.sole_rows)}</td>
              <td class="n">{ago(x.oldest, now)}</td>
              <td class="n">{x.overdue ? ago(x.overdue, now) : '–'}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

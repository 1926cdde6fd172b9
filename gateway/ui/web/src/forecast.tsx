// How a table is expected to grow, the partitions laid out by that, and how near the last ones came to their size.
import { get, type Answer } from './api';
import { about, bytes, count, short, time } from './format';
import { Bar, Problem } from './parts';
import { colour, Plot } from './plot';
import { href, usePoll, useUTC } from './store';
import type { Expected, Forecast, Status } from './types';

const columnsMost = 4;

export function Forecasts({ table }: { table: string }) {
  const { data, error } = usePoll<Answer<Status>>('forecast ' + table, 30, (signal) => get<Status>('api/v1/status/cluster', { table, partitions: 'none', forecast: 'show' }, signal));
  const t = data?.data.tables[0];
  const all = t?.forecast ?? [];
  if (error && !data) return <Problem error={error} />;
  if (!t || all.length === 0) return null;
  return (
    <section class="card" id="forecast">
      <h2>Forecast of {table}</h2>
      {all.slice(0, columnsMost).map((f) => <Column key={f.ring_lo} f={f} table={table} target={t.target_bytes ?? 0} now={data!.data.now} width={t.partition_width_ns / 1e9} whole={all.length === 1} />)}
      {all.length > columnsMost && <p class="dim">and {count(all.length - columnsMost)} more columns of the ring</p>}
    </section>
  );
}

const seconds = (text: string) => Date.parse(text) / 1000;

/** errors are how far the partitions that ended were from the target, of those that the forecast made: as shares of it, the smallest first. */
function errors(parts: Expected[], target: number, width: number): number[] {
  return parts.filter((p) => !p.expected && p.bytes !== null && seconds(p.to) - seconds(p.from) < width).map((p) => Math.abs(p.bytes! / target - 1)).sort((a, b) => a - b);
}

const percent = (share: number) => `${(share * 100).toFixed(0)} %`;

function Column({ f, table, target, now, width, whole }: { f: Forecast; table: string; target: number; now: string; width: number; whole: boolean }) {
  const utc = useUTC();
  const times = f.points.map((p) => seconds(p.at));
  const ended = f.partitions.filter((p) => Date.parse(p.to) <= Date.parse(now));
  const off = target > 0 ? errors(ended, target, width) : [];
  const most = Math.max(target, ...f.partitions.map((p) => p.bytes ?? 0));
  return (
    <>
      <p class="dim">
        {!whole && `${percent(f.ring_lo)} to ${percent(f.ring_hi)} of the ring · `}
        {f.known ? `${short(f.rows_per_second)} rows a second of ${f.bytes_per_row.toFixed(1)} bytes are expected` : 'too little of the last minutes is known for a forecast'}
        {f.since && ` · recorded since ${time(Date.parse(f.since), utc)}`} · {count(f.days)} past days count
        {target > 0 && ` · partitions should close near ${bytes(target)}`}
        {off.length > 0 && ` · the last ${count(off.length)} were off by ${percent(off[Math.floor(off.length / 2)])} in the median, ${percent(off[off.length - 1])} at most`}
      </p>
      {f.known && <Plot times={times} lines={[{ label: 'bytes a second', colour: colour(0), values: f.points.map((p) => p.bytes_per_second) }]} height={120} label="Expected growth" range={[times[0], times[times.length - 1]]} format={(v) => short(v) + 'B/s'} area />}
      <div class="scroll">
        <table class="forecast-table">
          <thead><tr><th>partition</th><th>begins</th><th class="n">covers</th><th class="n">size</th><th /><th>first server</th></tr></thead>
          <tbody>
            {f.partitions.map((p) => (
              <tr key={p.id} data-partition={p.id}>
                <td><a href={href('partitions', { table, partition: p.id })}>{p.id}</a></td>
                <td>{time(Date.parse(p.from), utc)}</td>
                <td class="n">{about(seconds(p.to) - seconds(p.from))}</td>
                <td class="n">{bytes(p.bytes)}{p.expected && <span class="dim"> expected</span>}</td>
                <td>{p.bytes !== null && most > 0 && <Bar share={p.bytes / most} kind={target > 0 && p.bytes > 2 * target ? 'warn' : undefined} />}</td>
                <td>{p.server}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

// What /api/v1/status/… answers. null: not known.

export interface Status {
  version: string;
  role: string;
  now: string;
  problems?: string[];
  coordination_age_ns: number;
  whole: boolean; // the reader may see all of the process
  grown_since?: string; // when the process began to count Server.grown
  servers: Server[];
  tables: Table[];
  topics?: Topic[];
}

export interface Server {
  id: string;
  addr?: string;
  host?: string;
  zone?: string;
  live: boolean;
  draining?: boolean;
  load: number | null;
  leads: number;
  grown: number | null; // rows by which its partitions grew since then
  bytes: number | null;
  damaged: number | null;
  disk?: { free: number; total: number } | null;
  /** bytes for which the disk has room beside the reserve */
  room?: number | null;
  scrub?: { pass_began: string; pass_ended: string; segments: number; checked: number; bytes_per_second: number; damaged: number };
}

export interface Staged {
  server: string;
  rows: number;
  bytes: number;
  later_rows: number;
  sole_rows: number;
  oldest: string | null;
  overdue?: string | null;
}

export interface Forecast {
  ring_lo: number;
  ring_hi: number;
  since: string | null;
  days: number;
  known: boolean;
  rows_per_second: number;
  bytes_per_row: number;
  bytes_per_partition: number;
  short_ns?: number;
  points: { at: string; bytes_per_second: number }[];
  partitions: Expected[]; // the newest that ended, then those to come
}

export interface Expected {
  id: number;
  from: string;
  to: string;
  bytes: number | null;
  expected: boolean; // by the forecast; else as it is
  server: string;
}

export interface Table {
  name: string;
  seq: number;
  retention_ns: number;
  partition_width_ns: number;
  replicas: number;
  min_in_sync: number;
  partition_count: number;
  rows: number | null;
  bytes: number | null;
  oldest: string | null;
  newest: string | null;
  staged?: Staged[];
  smear?: { setting: string; window_ns: number; why: string };
  forecast?: Forecast[];
  target_bytes?: number;
  unknown_partitions: number;
  partitions?: Partition[] | null;
}

export interface Partition {
  id: number;
  from: string;
  to: string;
  ring_lo: number;
  ring_hi: number;
  state: string;
  leader?: string;
  ahead?: boolean; // its time has not come: no server leads it yet, and it has no rows
  epoch?: number;
  lease_age_ns?: number;
  offline?: string;
  damaged?: string;
  unflushed?: string;
  servers: string[] | null;
  in_sync: string[] | null; // null: unknown
  behind: string[] | null; // placements that are not in sync
  empty?: boolean; // no row was ever acknowledged
  rows: number | null;
  bytes: number | null;
  transfers?: Transfer[];
}

/** Transfer is how far rows of a partition are on their way. */
export interface Transfer {
  from: string;
  to?: string; // a server; else into
  into?: number[]; // the partitions that take over
  done_bytes: number;
  total_bytes: number;
  bytes_per_second: number; // 0: not known yet
  since: string;
  left_ns: number | null;
}

export interface Topic {
  cluster: string;
  group: string;
  topic: string;
  partition: number;
  lag: number;
  committed: number;
  rows: number;
  bytes: number;
  poison: number;
  paused?: boolean;
  rows_per_second: number;
  last_error?: string;
}

export interface Use { limit: string; value: number; max: number; used: number; dryRun?: boolean }

export interface TableUse {
  table: string;
  samplesPerSecond: number;
  bytesPerSecond: number;
  activeSeries: number;
  newSeriesPerSecond: number;
  queriesPerSecond: number;
  queriesRunning: number;
  requestsUnderWay: number;
  dryRun?: boolean;
  refusedPerSecond: Record<string, number>;
  wouldRefusePerSecond?: Record<string, number>;
  samples: number;
  bytes: number;
  queries: number;
  refused: Record<string, number>;
  refusedSamples: Record<string, number>;
  near: Use[];
  uses?: Use[];
}

/** SenderUse is a sender with what it wrote into a table. */
export interface SenderUse {
  protocol: string;
  identity: string; // of its token or user; '': none is asked for
  agent: string;
  network: string;
  requests: number;
  rows: number;
  new_series: number;
  new_series_per_minute: number; // of the last minute
  first: string;
  last: string;
}

export interface TableSenders {
  table: string;
  senders: SenderUse[];
  senders_left_out: number;
  names?: { name: string; new_series: number; new_series_per_minute: number; last: string; by: { sender: number; new_series: number }[] }[];
  names_left_out: number;
}

export interface SenderLists { tables: TableSenders[]; tables_left_out?: number }

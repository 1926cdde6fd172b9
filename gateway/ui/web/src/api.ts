// Requests to the process that serves this page. Every path is relative, so that a proxy may serve the page below a prefix.

/** base is where the page lies, with a slash at its end. */
export const base = new URL('.', document.baseURI).href;

const KEY = 'spillway.authorization';

/** Credentials are kept for this tab alone, and gone with it. */
export const credentials = {
  get(): string | null {
    return sessionStorage.getItem(KEY);
  },
  token(token: string) {
    sessionStorage.setItem(KEY, 'Bearer ' + token);
  },
  password(user: string, password: string) {
    const bytes = new TextEncoder().encode(user + ':' + password);
    sessionStorage.setItem(KEY, 'Basic ' + btoa(String.fromCharCode(...bytes)));
  },
  forget() {
    sessionStorage.removeItem(KEY);
  },
};

/** Failure is an answer that is not what was asked for; text is the process's own words. */
export class Failure extends Error {
  constructor(
    readonly status: number, // 0: no answer
    readonly kind: string,
    text: string,
  ) {
    super(text);
  }
}

type Listener = () => void;
const refused = new Set<Listener>();

/** onRefused calls f whenever the process asks for credentials, and returns how to stop that. */
export function onRefused(f: Listener): () => void {
  refused.add(f);
  return () => void refused.delete(f);
}

/** authorized is fetch with the credentials of this tab. X-Requested-With keeps the browser from asking for a password itself. */
export async function authorized(input: RequestInfo | URL, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  const auth = credentials.get();
  if (auth) headers.set('Authorization', auth);
  headers.set('X-Requested-With', 'XMLHttpRequest');
  const res = await fetch(input, { ...init, headers, cache: 'no-store' });
  if (res.status === 401) refused.forEach((f) => f());
  return res;
}

/** Answer is the envelope of the Prometheus API. */
export interface Answer<T> {
  data: T;
  warnings: string[];
  infos: string[];
  bytes: number;
  millis: number;
}

/** get asks for a path below base, with parameters in a form where they are long. The error is a Failure. */
export async function get<T>(path: string, params: Record<string, string | string[] | undefined> = {}, signal?: AbortSignal): Promise<Answer<T>> {
  const form = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value === undefined) continue;
    for (const v of Array.isArray(value) ? value : [value]) form.append(name, v);
  }
  const text = form.toString();
  const began = performance.now();
  let res: Response;
  let body: string;
  try {
    res = text.length > 1500
      ? await authorized(base + path, { method: 'POST', body: form, signal })
      : await authorized(base + path + (text ? '?' + text : ''), { signal });
    body = await res.text();
  } catch (e) {
    if (e instanceof DOMException && e.name === 'AbortError') throw e;
    throw new Failure(0, 'unreachable', `No answer from ${new URL(base).host}: ${(e as Error).message}`);
  }
  let parsed: { status?: string; data?: T; errorType?: string; error?: string; warnings?: string[]; infos?: string[] };
  try {
    parsed = JSON.parse(body);
  } catch {
    throw new Failure(res.status, `HTTP ${res.status}`, body.trim().slice(0, 500) || res.statusText);
  }
  if (!res.ok || parsed.status !== 'success') {
    throw new Failure(res.status, parsed.errorType ?? `HTTP ${res.status}`, parsed.error ?? body.slice(0, 500));
  }
  return { data: parsed.data as T, warnings: parsed.warnings ?? [], infos: parsed.infos ?? [], bytes: body.length, millis: performance.now() - began };
}

/** ofTable is the path of the Prometheus API for one table. */
export function ofTable(table: string, path: string): string {
  return `t/${encodeURIComponent(table)}/api/v1/${path}`;
}

export type Labels = Record<string, string>;
export type Sample = [number, string];

export interface Series {
  metric: Labels;
  values?: Sample[];
  value?: Sample;
  histograms?: [number, unknown][];
  histogram?: [number, unknown];
}

export interface QueryResult {
  resultType: 'matrix' | 'vector' | 'scalar' | 'string';
  result: Series[] | Sample;
}

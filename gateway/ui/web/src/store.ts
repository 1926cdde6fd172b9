// What the whole page shares: its address, settings of this browser, and how it refreshes itself.
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';

/** Value is a cell that components follow. */
export class Value<T> {
  private followers = new Set<() => void>();
  constructor(private now: T) {}
  get = (): T => this.now;
  set = (next: T) => {
    if (next === this.now) return;
    this.now = next;
    this.followers.forEach((f) => f());
  };
  follow = (f: () => void): (() => void) => {
    this.followers.add(f);
    return () => void this.followers.delete(f);
  };
}

export function useValue<T>(v: Value<T>): T {
  const [, again] = useState(0);
  useEffect(() => v.follow(() => again((n) => n + 1)), [v]);
  return v.get();
}

// The address: #/<view>?<parameters>.

export interface Address {
  view: string;
  params: URLSearchParams;
}

function read(): Address {
  const text = location.hash.replace(/^#\/?/, '');
  const [view, query] = text.split(/\?(.*)/s);
  return { view, params: new URLSearchParams(query ?? '') };
}

export const address = new Value<Address>(read());
addEventListener('hashchange', () => address.set(read()));
addEventListener('popstate', () => address.set(read()));

/** href is the address of a view. Parameters that are empty or undefined are left out. */
export function href(view: string, params: Record<string, string | string[] | number | undefined> = {}): string {
  const q = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value === undefined || value === '') continue;
    for (const v of Array.isArray(value) ? value : [value]) q.append(name, String(v));
  }
  const text = q.toString().replace(/%2F/g, '/').replace(/%3A/g, ':').replace(/%2C/g, ',');
  return '#/' + view + (text ? '?' + text : '');
}

/** go moves to an address; with `replace` the way back does not lead to the present one. */
export function go(to: string, replace = false) {
  if (to === location.hash) return;
  if (replace) history.replaceState(null, '', to);
  else history.pushState(null, '', to);
  address.set(read());
}

/** alter changes parameters of the present address. */
export function alter(changes: Record<string, string | undefined>, replace = true) {
  const { view, params } = address.get();
  const next = new URLSearchParams(params);
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === '') next.delete(name);
    else next.set(name, value);
  }
  const text = next.toString();
  go('#/' + view + (text ? '?' + text : ''), replace);
}

// Settings of this browser.

function stored(key: string, initial: string): Value<string> {
  const v = new Value(localStorage.getItem('spillway.' + key) ?? initial);
  v.follow(() => localStorage.setItem('spillway.' + key, v.get()));
  return v;
}

export const theme = stored('theme', 'auto'); // auto, light, dark
export const zone = stored('zone', 'local'); // local, utc
export const grafana = stored('grafana', ''); // URL
export const grafanaSource = stored('grafana.source', ''); // uid of a data source

export const useUTC = () => useValue(zone) === 'utc';

const prefersDark = matchMedia('(prefers-color-scheme: dark)');
export const dark = new Value(false);
function applyTheme() {
  const t = theme.get();
  dark.set(t === 'dark' || (t === 'auto' && prefersDark.matches));
  document.documentElement.dataset.theme = dark.get() ? 'dark' : 'light';
}
theme.follow(applyTheme);
prefersDark.addEventListener('change', applyTheme);
applyTheme();

/** reloads counts how often everything is to be asked for anew: after a login, and by hand. */
export const reloads = new Value(0);

/** useVisible is false in a tab that is hidden. */
export function useVisible(): boolean {
  const [visible, set] = useState(!document.hidden);
  useEffect(() => {
    const f = () => set(!document.hidden);
    document.addEventListener('visibilitychange', f);
    return () => document.removeEventListener('visibilitychange', f);
  }, []);
  return visible;
}

export interface Polled<T> {
  data?: T;
  error?: Error;
  at: number; // when data came; 0: never
}

/**
 * usePoll asks again every `period` seconds (0: once) while the tab is seen. What it has stays until the next answer, so that
 * nothing flickers; a change of `key` forgets it.
 */
export function usePoll<T>(key: string, period: number, ask: (signal: AbortSignal) => Promise<T>): Polled<T> {
  const [state, set] = useState<Polled<T> & { key: string }>({ key, at: 0 });
  const visible = useVisible();
  const epoch = useValue(reloads);
  const latest = useRef(ask);
  latest.current = ask;
  useEffect(() => {
    if (!visible) return;
    const ended = new AbortController();
    let timer = 0;
    const once = async () => {
      try {
        const data = await latest.current(ended.signal);
        if (!ended.signal.aborted) set({ key, data, at: Date.now() });
      } catch (error) {
        if (ended.signal.aborted) return;
        set((was) => ({ key, data: was.key === key ? was.data : undefined, at: was.key === key ? was.at : 0, error: error as Error }));
      }
      if (!ended.signal.aborted && period > 0) timer = window.setTimeout(once, period * 1000);
    };
    void once();
    return () => {
      ended.abort();
      clearTimeout(timer);
    };
  }, [key, period, visible, epoch]);
  return state.key === key ? state : { at: 0 };
}

/** useSize follows the width of an element. */
export function useWidth<E extends HTMLElement>(): [(e: E | null) => void, number] {
  const [width, set] = useState(0);
  const observer = useRef<ResizeObserver>(null);
  const ref = useCallback((e: E | null) => {
    observer.current?.disconnect();
    if (!e) return;
    set(Math.floor(e.clientWidth));
    observer.current = new ResizeObserver(() => set(Math.floor(e.clientWidth)));
    observer.current.observe(e);
  }, []);
  return [ref, width];
}

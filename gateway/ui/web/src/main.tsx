// The frame of the page: head, views, what is wrong, and the way in.
import { render, type ComponentType } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import 'uplot/dist/uPlot.min.css';
import './style.css';
import { credentials, Failure, get, onRefused, type Answer } from './api';
import { Explore, GrafanaSettings } from './explore';
import { Button, Choice, fold, Loading, Menu, Notice, Problem } from './parts';
import { address, go, href, reloads, theme, usePoll, useValue, zone } from './store';
import { Activity } from './activity';
import { Cardinality } from './cardinality';
import { useRecording } from './history';
import { Partitions } from './partitions';
import { Servers } from './servers';
import { Tables } from './tables';
import type { Status } from './types';

export interface ViewProps { table: string; status: Status; params: URLSearchParams }

const VIEWS: [string, string, ComponentType<ViewProps>][] = [
  ['explore', 'Explore', Explore],
  ['activity', 'Activity', Activity],
  ['cardinality', 'Cardinality', Cardinality],
  ['tables', 'Tables', Tables],
  ['partitions', 'Partitions', Partitions],
  ['servers', 'Servers', Servers],
];

const STATUS_PERIOD = 5;

function App() {
  const { view, params } = useValue(address);
  const [locked, lock] = useState(false);
  useEffect(() => onRefused(() => lock(true)), []);
  const { data, error } = usePoll<Answer<Status>>('status', STATUS_PERIOD, (signal) => get<Status>('api/v1/status/cluster', { partitions: 'none' }, signal));
  const status = data?.data;
  useRecording(status);

  const tables = status?.tables.map((t) => t.name) ?? [];
  const wanted = params.get('table') ?? '';
  const table = wanted || (tables.includes('default') || tables.length === 0 ? 'default' : tables[0]);
  const found = VIEWS.find(([name]) => name === view) ?? VIEWS[0];
  const View = found[2];
  const nav = useRef<HTMLElement>(null);
  useEffect(() => {
    document.title = `${found[1]} · Spillway`;
    // On a phone the views are wider than the screen.
    const all = nav.current, chosen = all?.querySelector<HTMLElement>('[aria-current]');
    if (all && chosen) all.scrollLeft = chosen.offsetLeft - all.offsetLeft - (all.clientWidth - chosen.offsetWidth) / 2;
  }, [found[1]]);

  return (
    <>
      <a class="skip" href="#content" onClick={(e) => { e.preventDefault(); document.getElementById('content')?.focus(); }}>Skip to the content</a>
      <header class="head">
        <a class="brand" href={href('explore', { table: wanted })} aria-label="Spillway"><img src="./icon.svg" alt="" width="24" height="24" /><b>Spillway</b></a>
        <nav aria-label="Views" ref={nav}>
          {VIEWS.map(([name, text]) => <a key={name} href={href(name, { table: wanted })} aria-current={name === found[0] ? 'page' : undefined}>{text}</a>)}
        </nav>
        <div class="head-tools">
          <TablePicker table={table} tables={tables} />
          <Settings status={status} />
        </div>
      </header>
      <div id="content" tabIndex={-1}>
        {locked ? <Login done={() => { lock(false); reloads.set(reloads.get() + 1); }} />
          : <>
              <Banners status={status} error={error} />
              {status ? <View table={table} status={status} params={params} /> : !error && <main><Loading what="Asking how things are" /></main>}
            </>}
      </div>
    </>
  );
}

function TablePicker({ table, tables }: { table: string; tables: string[] }) {
  const { view, params } = useValue(address);
  const pick = (name: string) => {
    const next = new URLSearchParams(params);
    next.set('table', name);
    go('#/' + (view || 'explore') + '?' + next.toString());
  };
  const all = tables.includes(table) ? tables : [table, ...tables];
  return (
    <label class="picker"><span>table</span>
      <select id="table" value={table} onChange={(e) => pick(e.currentTarget.value)}>{all.map((t) => <option key={t} value={t}>{t}</option>)}</select>
    </label>
  );
}

function Settings({ status }: { status?: Status }) {
  const t = useValue(theme);
  const z = useValue(zone);
  return (
    <Menu label="Settings" icon="gear" bare right>
      {(close) => (
        <div class="settings">
          <div><span class="dim">Colours</span><Choice label="Colours" value={t} options={[['auto', 'Auto'], ['light', 'Light'], ['dark', 'Dark']]} onChange={theme.set} /></div>
          <div><span class="dim">Times</span><Choice label="Times" value={z} options={[['local', 'Local'], ['utc', 'UTC']]} onChange={zone.set} /></div>
          <GrafanaSettings onDone={close} />
          {credentials.get() && <Button label="Forget the credentials of this tab" onClick={() => { credentials.forget(); close(); reloads.set(reloads.get() + 1); }} />}
          {status && <p class="dim version">Spillway {status.version}, {status.role} · <a href="./metrics">metrics</a> · <a href="./NOTICE.txt">licences</a></p>}
        </div>
      )}
    </Menu>
  );
}

/** Banners show each cause once. */
function Banners({ status, error }: { status?: Status; error?: Error }) {
  const [all, showAll] = useState(false);
  const problems = fold(status?.problems ?? []);
  const shown = all ? problems : problems.slice(0, 4);
  if (!error && problems.length === 0) return null;
  return (
    <div class="banners" aria-live="polite">
      {error && !(error instanceof Failure && error.status === 401) && (status ? <Notice kind="bad" title="What is shown is not new.">{error.message}</Notice> : <Problem error={error} />)}
      {shown.map(([text, times]) => <Notice kind="warn" key={text}>{text}{times > 1 && <span class="dim"> ({times} times)</span>}</Notice>)}
      {problems.length > shown.length && <Button small label={`${problems.length - shown.length} more problems`} onClick={() => showAll(true)} />}
    </div>
  );
}

function Login({ done }: { done: () => void }) {
  const [how, setHow] = useState<'token' | 'password'>('token');
  const [user, setUser] = useState('');
  const [secret, setSecret] = useState('');
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const again = credentials.get() !== null;
  const enter = async (e: Event) => {
    e.preventDefault();
    if (how === 'token') credentials.token(secret.trim());
    else credentials.password(user, secret);
    setBusy(true);
    try {
      await get('api/v1/status/cluster', { partitions: 'none' });
      done();
    } catch (err) {
      setError(err as Error);
    }
    setBusy(false);
  };
  return (
    <main class="login">
      <form class="card" onSubmit={enter}>
        <h1>Sign in</h1>
        <p class="dim">This process asks for credentials{again ? ', and those of this tab are not taken' : ''}. They are kept for this tab alone.</p>
        <Choice label="With" value={how} options={[['token', 'Token'], ['password', 'User and password']]} onChange={setHow} />
        {how === 'password' && <label>User<input id="user" autocomplete="username" value={user} onInput={(e) => setUser(e.currentTarget.value)} /></label>}
        <label>{how === 'token' ? 'Token' : 'Password'}<input id="secret" type="password" autocomplete="current-password" value={secret} onInput={(e) => setSecret(e.currentTarget.value)} autofocus /></label>
        {error && <Problem error={error} />}
        <button class="btn primary" type="submit" disabled={busy || secret === ''}>{busy ? 'Asking…' : 'Enter'}</button>
      </form>
    </main>
  );
}

const app = document.getElementById('app')!;
app.textContent = '';
render(<App />, app);

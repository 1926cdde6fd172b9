// What the browser tests stand on: real processes, a headless Chromium, and a watch over every page.
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

export const bin = process.env.PAGE_BIN ?? 'bin/spillway';
export const shots = process.env.PAGE_SHOTS ?? '.cache/page';
mkdirSync(shots, { recursive: true });

const places = [process.env.PAGE_CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/chromium-headless-shell', '/usr/bin/google-chrome'];

export async function openBrowser() {
  const executablePath = places.find((p) => p && existsSync(p));
  if (!executablePath) throw new Error('there is no Chromium');
  return chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu'] }); // CI runs as root, in a container
}

/** begin starts a program and resolves when its output has what is waited for. */
function begin(command, args, wanted, patience = 60_000) {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let out = '';
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => { child.kill('SIGKILL'); reject(new Error(`${command} did not say ${wanted} in ${patience / 1000} s:\n${out}`)); }, patience);
    const read = (text) => {
      out += text;
      const m = wanted.exec(out);
      if (!m) return;
      clearTimeout(timer);
      resolve({ child, found: m, output: () => out, stop: () => stop(child) });
    };
    child.stdout.on('data', read);
    child.stderr.on('data', read);
    child.on('exit', (code) => { clearTimeout(timer); reject(new Error(`${command} ended with ${code}:\n${out}`)); });
  });
}

function stop(child) {
  if (child.exitCode !== null) return Promise.resolve();
  return new Promise((done) => {
    const timer = setTimeout(() => child.kill('SIGKILL'), 20_000);
    child.on('exit', () => { clearTimeout(timer); done(); });
    child.kill('SIGTERM');
  });
}

/** standalone starts a process with an empty store; files are written beside it and may be named in args by {dir}. */
export async function standalone(args = [], files = {}) {
  const dir = mkdtempSync(join(tmpdir(), 'spillway-page-'));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(dir, name), text);
  const p = await begin(bin, ['standalone', '--data-dir', join(dir, 'data'), '--http.listen', '127.0.0.1:0', '--admin.listen', '', '--self.scrape-interval', '0', ...args.map((a) => a.replace('{dir}', dir))], /metrics +(http:\/\/127\.0\.0\.1:\d+)\/metrics\s/);
  return { base: p.found[1], stop: async () => { await p.stop(); rmSync(dir, { recursive: true, force: true }); } };
}

/** cluster starts etcd, three storage servers and two gateways, which write their metrics every two seconds. */
export async function cluster() {
  const dir = mkdtempSync(join(tmpdir(), 'spillway-page-'));
  const port = await freePorts(40);
  const p = await begin(bin.replace(/spillway$/, 'cluster'), ['-bin', bin, '-dir', dir, '-storage', '3', '-gateways', '2', '-port', String(port), '-insecure',
    '-env', 'SPILLWAY_SELF_SCRAPE_INTERVAL=2s', '-env', 'SPILLWAY_TABLES_REPLICAS=1'] /* what a server that is away holds is unknown only where no other has it */, /one more storage server/, 90_000);
  const pids = Object.fromEntries([...p.output().matchAll(/storage (s\d) .*kill -9 (\d+)/g)].map((m) => [m[1], Number(m[2])]));
  const [base, other] = [...p.output().matchAll(/(http:\/\/[\d.:]+)\/ +status page/g)].map((m) => m[1]);
  return { base, other, pids, stop: async () => { await p.stop(); rmSync(dir, { recursive: true, force: true }); } };
}

/** freePorts finds the first of so many ports in a row that nobody listens on, below those of the tests of clusters, which may run beside. */
async function freePorts(n) {
  const free = (port) => new Promise((ok) => { const s = createServer(); s.once('error', () => ok(false)); s.listen(port, '127.0.0.1', () => s.close(() => ok(true))); });
  for (let at = 11000 + Math.floor(Math.random() * 80) * 50; at + n <= 16000; at += n) {
    const all = await Promise.all(Array.from({ length: n }, (_, i) => free(at + i)));
    if (all.every(Boolean)) return at;
  }
  throw new Error('there are no free ports');
}

export async function write(base, table, lines, headers = {}) {
  const res = await fetch(`${base}/write?db=${table}&precision=s`, { method: 'POST', body: lines.join('\n'), headers });
  return { status: res.status, text: await res.text() };
}

export async function api(base, path, params = {}, headers = {}) {
  const res = await fetch(`${base}/${path}?${new URLSearchParams(params)}`, { headers });
  return res.json();
}

/** watched opens a page and fails later on what no page may do: errors of the console, requests to another origin. */
export async function watched(browser, base, { width = 1280, height = 860, dark = false, expect = [] } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: dark ? 'dark' : 'light', timezoneId: 'UTC', locale: 'en-GB', deviceScaleFactor: width < 500 ? 2 : 1 });
  const page = await context.newPage();
  const faults = [];
  const requests = [];
  page.on('console', (m) => {
    if (m.type() !== 'error' && m.type() !== 'warning') return;
    if (!expect.some((e) => m.text().includes(e))) faults.push(`console ${m.type()}: ${m.text()}`);
  });
  page.on('pageerror', (e) => faults.push('error: ' + e.message));
  page.on('request', (r) => {
    requests.push(r.url());
    if (!r.url().startsWith(base + '/') && !r.url().startsWith('data:') && !r.url().startsWith('blob:')) faults.push('request to another origin: ' + r.url());
  });
  page.setDefaultTimeout(20_000);
  return { page, context, faults, requests, open: (hash) => page.goto(base + '/' + hash) };
}

// The page in a headless Chromium, before real processes with real rows. What it shows is compared with what the API says.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, afterEach, before, describe, test } from 'node:test';
import { api, cluster, openBrowser, shots, standalone, watched, write } from './world.mjs';

const now = Math.floor(Date.now() / 1000 / 60) * 60;
let browser, one;
let open = [];

before(async () => {
  browser = await openBrowser();
  one = await standalone(['--partition-width', '1h']);
  const lines = ['old,host=museum value=1 86400'];
  for (let t = now - 3 * 3600; t <= now; t += 15) {
    for (let h = 1; h <= 4; h++) {
      lines.push(`cpu,host=web-${h},datacenter=fra-${1 + (h % 2)},role=frontend usage=${(40 + 20 * Math.sin(t / 1800 + h) + h).toFixed(3)} ${t}`);
      lines.push(`requests_total,host=web-${h},datacenter=fra-${1 + (h % 2)},role=frontend,handler=/api/v1/organisations/{organisation}/projects/{project}/deployments value=${Math.floor((t - now + 20000) * h * 3.7)} ${t}`);
    }
  }
  for (let i = 0; i < lines.length; i += 5000) {
    const res = await write(one.base, 'default', lines.slice(i, i + 5000));
    assert.equal(res.status, 204, res.text);
  }
  assert.equal((await write(one.base, 'team-sensors', Array.from({ length: 60 }, (_, i) => `temperature,room=r${i % 20} value=${20 + i / 10} ${now - i * 60}`))).status, 204);
});

after(async () => {
  await browser?.close();
  await one?.stop();
});

async function page(options, base = one.base) {
  const w = await watched(browser, base, options);
  open.push(w);
  return w;
}

afterEach(async () => {
  const faults = open.flatMap((w) => w.faults);
  await Promise.all(open.map((w) => w.context.close()));
  open = [];
  assert.deepEqual(faults, []);
});

// A browser may hang, and must not hold up the rest.
const check = (name, f) => test(name, { timeout: 60_000 }, f);

const hash = (view, params = {}) => '#/' + view + '?' + new URLSearchParams(params);

/** shown waits until an element has a text that fits. */
async function shown(p, selector, fits, what = selector) {
  const end = Date.now() + 20_000;
  for (let text; ; await p.waitForTimeout(100)) {
    text = await p.locator(selector).first().innerText({ timeout: 20_000 });
    if (fits instanceof RegExp ? fits.test(text) : fits(text)) return text;
    if (Date.now() > end) assert.fail(`${what}: ${text}`);
  }
}

const shot = (p, name, options = {}) => p.screenshot({ path: join(shots, name + '.png'), ...options });

describe('explore', () => {
  check('the plot is drawn with the values of the API', async () => {
    const { page: p, open } = await page();
    const answered = p.waitForResponse((r) => r.url().includes('/query_range'));
    await open(hash('explore', { q: 'cpu_usage', from: String(now - 7200), to: String(now) }));
    const asked = new URL((await answered).url()).searchParams;
    const { data } = await api(one.base, 't/default/api/v1/query_range', asked);
    assert.equal(data.result.length, 4);
    await p.waitForSelector('.legend-row:nth-child(5)');
    // The legend: last and max of each series, to four digits.
    for (const s of data.result) {
      const row = p.locator('button.legend-row', { hasText: s.metric.host });
      const [last, , , max] = await row.locator('.n').allInnerTexts();
      const values = s.values.map((v) => Number(v[1]));
      near(Number(last), values.at(-1));
      near(Number(max), Math.max(...values));
    }
    // The canvas: lines in the colours of the legend.
    const drawn = await p.evaluate(() => {
      const c = document.querySelector('.plot canvas');
      const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);
      const wanted = [[0x2a, 0x8b, 0xd6], [0xe8, 0x74, 0x3b], [0x19, 0xa9, 0x79], [0xd6, 0x45, 0x81]];
      return wanted.map(([r, g, b]) => { let n = 0; for (let i = 0; i < data.length; i += 4) if (Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 24) n++; return n; });
    });
    for (const n of drawn) assert.ok(n > 150, `pixels by line: ${drawn}`);
    // Hover: every value at that time.
    const box = await boxOf(p, '.u-over');
    await p.mouse.move(box.x + box.width / 3, box.y + box.height / 2);
    const tip = await shown(p, '.tip', /web-1/);
    const at = Date.parse(/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d/.exec(tip)[0].replace(' ', 'T') + 'Z') / 1000;
    for (const s of data.result) {
      const value = Number(s.values.find((v) => v[0] === at)[1]);
      const row = await p.locator('.tip-row', { hasText: s.metric.host }).locator('b').innerText();
      near(Number(row), value);
    }
    await shot(p, 'explore');
  });

  check('the table holds exactly the values of the API', async () => {
    const { page: p, open } = await page();
    const answered = p.waitForResponse((r) => r.url().includes('/query_range'));
    await open(hash('explore', { q: 'cpu_usage', from: String(now - 1800), to: String(now), step: '1m', view: 'table' }));
    const { data } = await api(one.base, 't/default/api/v1/query_range', new URL((await answered).url()).searchParams);
    await p.waitForSelector('#matrix tbody tr');
    const table = await p.evaluate(() => ({
      heads: [...document.querySelectorAll('#matrix thead th')].map((e) => e.title),
      rows: [...document.querySelectorAll('#matrix tbody tr')].map((e) => [Number(e.dataset.time), ...[...e.querySelectorAll('td')].map((d) => d.textContent)]),
    }));
    assert.equal(table.rows.length, 31);
    data.result.forEach((s, i) => {
      assert.ok(table.heads[i + 1].includes(`host="${s.metric.host}"`));
      assert.deepEqual(table.rows.map((r) => [r[0], Number(r[i + 1])]).reverse(), s.values.map(([t, v]) => [t, Number(v)]));
    });
    await shot(p, 'table');
  });

  check('instant values are those of the API', async () => {
    const { page: p, open } = await page();
    await open(hash('explore', { q: 'sum by (host) (requests_total)', to: String(now), from: String(now - 600), view: 'instant' }));
    await p.waitForSelector('#instant tbody tr');
    const rows = await p.locator('#instant tbody tr').evaluateAll((all) => all.map((e) => [e.querySelector('code').textContent, e.querySelector('[data-value]').dataset.value]));
    const { data } = await api(one.base, 't/default/api/v1/query', { query: 'sum by (host) (requests_total)', time: String(now) });
    assert.deepEqual(rows, data.result.map((s) => [`{host="${s.metric.host}"}`, s.value[1]]));
  });

  check('of more metrics than are listed, each is found by a part of its name', async () => {
    assert.equal((await write(one.base, 'many', Array.from({ length: 205 }, (_, i) => `many m${String(i).padStart(3, '0')}=1 ${now}`))).status, 204);
    const { page: p, open } = await page();
    await open(hash('explore', { table: 'many' }));
    await shown(p, 'main', /many_m199[\s\S]*These are the first 200/);
    assert.ok(!/many_m204/.test(await p.locator('main').innerText()));
    await p.getByLabel('Search metrics').fill('Y_M204');
    await p.waitForFunction(() => [...document.querySelectorAll('.chip')].map((e) => e.textContent).join() === 'many_m204');
    await p.getByLabel('Search metrics').fill('m.204');
    await shown(p, 'main', /No metric has this in its name/);
  });

  check('queries are written with completion and run by keyboard alone', async () => {
    const { page: p, open } = await page();
    await open('');
    await shown(p, 'main', /Metrics of table default/);
    await p.locator('[data-query="A"] .cm-content').focus();
    await p.keyboard.type('sum by (host) (cpu_us', { delay: 15 });
    await p.locator('.cm-tooltip-autocomplete li', { hasText: 'cpu_usage' }).first().waitFor();
    await p.waitForTimeout(150); // completion takes no key sooner than 75 ms after it opened
    await p.keyboard.press('Enter');
    await p.keyboard.press('End');
    await shown(p, '[data-query="A"] .cm-content', /^sum by \(host\) \(cpu_usage\)?\)?$/);
    await p.keyboard.press('Enter');
    await p.waitForSelector('.legend-row:nth-child(5)');
    assert.match(p.url(), /q=sum\+by/);
    // The plot takes keys, too: a quarter to the left.
    await p.locator('.plot').focus();
    await p.keyboard.press('ArrowLeft');
    await p.waitForFunction(() => /from=\d+/.test(location.hash));
    await p.goBack();
    await p.waitForFunction(() => !/from=\d+/.test(location.hash));
    await p.waitForSelector('.legend-row:nth-child(5)');
    // Every control of the head is reached by Tab.
    await open(hash('tables'));
    await p.reload();
    await p.waitForSelector('#tables');
    const reached = [];
    for (let i = 0; i < 12; i++) {
      await p.keyboard.press('Tab');
      reached.push(await p.evaluate(() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim()));
    }
    for (const name of ['Explore', 'Activity', 'Cardinality', 'Tables', 'Partitions', 'Servers', 'Settings']) assert.ok(reached.includes(name), `${name} in ${reached}`);
  });

  check('a click in the legend shows one line alone, with Ctrl it hides one', async () => {
    const { page: p, open } = await page({ expect: ['willReadFrequently'] });
    await open(hash('explore', { q: 'cpu_usage', from: String(now - 7200), to: String(now) }));
    await p.waitForSelector('.legend-row:nth-child(5)');
    const rows = p.locator('button.legend-row');
    const pressed = () => rows.evaluateAll((all) => all.map((e) => e.getAttribute('aria-pressed') === 'true'));
    const drawn = async (wanted) => {
      assert.deepEqual(await pressed(), wanted);
      // The canvas has the lines that the legend says, and no others.
      await p.waitForFunction((wanted) => {
        const c = document.querySelector('.plot canvas');
        const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);
        return [[0x2a, 0x8b, 0xd6], [0xe8, 0x74, 0x3b], [0x19, 0xa9, 0x79], [0xd6, 0x45, 0x81]].every(([r, g, b], k) => {
          let n = 0;
          for (let i = 0; i < data.length; i += 4) if (Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 24) n++;
          return wanted[k] ? n > 150 : n < 20;
        });
      }, wanted);
    };
    await drawn([true, true, true, true]);
    await rows.nth(1).click();
    await drawn([false, true, false, false]);
    await rows.nth(1).click();
    await drawn([true, true, true, true]);
    await rows.nth(2).click({ modifiers: ['Control'] });
    await drawn([true, true, false, true]);
    await rows.nth(2).click({ modifiers: ['Control'] });
    await drawn([true, true, true, true]);
  });

  check('CSV holds the values of the API', async () => {
    const { page: p, open } = await page();
    const params = { q: 'cpu_usage', from: String(now - 1800), to: String(now), step: '1m', view: 'table' };
    await open(hash('explore', params));
    await p.waitForSelector('#matrix tbody tr');
    const [download] = await Promise.all([p.waitForEvent('download'), p.getByRole('button', { name: 'CSV' }).click()]);
    assert.equal(download.suggestedFilename(), 'spillway.csv');
    const [head, ...rows] = readFileSync(await download.path(), 'utf8').trimEnd().split('\n');
    const { data } = await api(one.base, 't/default/api/v1/query_range', { query: 'cpu_usage', start: params.from, end: params.to, step: '60' });
    const names = head.match(/"(?:[^"]|"")*"|[^,]+/g).map((c) => c.replace(/^"|"$/g, '').replaceAll('""', '"'));
    assert.deepEqual(names, ['time', ...data.result.map((s) => `cpu_usage{${Object.entries(s.metric).filter(([k]) => k !== '__name__').sort().map(([k, v]) => `${k}="${v}"`).join(', ')}}`)]);
    assert.deepEqual(rows.map((r) => r.split(',')).map(([t, ...v]) => [Date.parse(t) / 1000, ...v.map(Number)]), data.result[0].values.map(([t], i) => [t, ...data.result.map((s) => Number(s.values[i][1]))]));
  });

  check('exemplars are drawn where they are asked for, with their labels', async () => {
    const nanos = (t) => String(BigInt(t) * 1000000000n);
    const dataPoints = Array.from({ length: 20 }, (_, i) => ({ timeUnixNano: nanos(now - 600 + i * 30), asDouble: 10 + i, ...(i === 10 && { exemplars: [{ timeUnixNano: nanos(now - 300), asDouble: 15, traceId: '0af7651916cd43dd8448eb211c80319c', spanId: 'b7ad6b7169203331' }] }) }));
    const body = { resourceMetrics: [{ resource: {}, scopeMetrics: [{ scope: {}, metrics: [{ name: 'took', sum: { isMonotonic: true, aggregationTemporality: 2, dataPoints } }] }] }] };
    const res = await fetch(`${one.base}/v1/metrics?db=traces`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
    assert.equal(res.status, 200, await res.text());
    const { page: p, open, requests } = await page();
    await open(hash('explore', { table: 'traces', q: '{__name__=~"took.*"}', from: String(now - 600), to: String(now) }));
    await p.waitForSelector('.legend-row:nth-child(2)');
    assert.ok(!requests.some((u) => u.includes('query_exemplars')), 'nobody has asked for exemplars');
    await p.getByLabel('exemplars').check();
    await p.waitForFunction(() => /exemplars=1/.test(location.hash));
    const box = await boxOf(p, '.u-over');
    // It lies in the middle of the range; its height is found by looking for it.
    let tip = '';
    const end = Date.now() + 20_000;
    for (let y = 0; !tip.includes('exemplar'); y = (y + 5) % box.height) {
      if (Date.now() > end) assert.fail(`no exemplar is found: ${tip}`);
      await p.mouse.move(box.x + box.width / 2, box.y + y);
      tip = await p.locator('.tip').first().innerText({ timeout: 500 }).catch(() => '');
    }
    assert.match(tip, /◆ exemplar 15 .*trace_id="0af7651916cd43dd8448eb211c80319c"/);
    // In its column of the canvas the colour is that of the line and of the mark below it; beside it that of the line.
    const columns = await p.evaluate(() => {
      const c = document.querySelector('.plot canvas'), over = document.querySelector('.u-over').getBoundingClientRect(), box = c.getBoundingClientRect();
      const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);
      return [0, 20].map((by) => {
        const x = Math.round(over.left - box.left + over.width / 2) + by;
        let n = 0;
        for (let y = 0; y < c.height; y++) { const i = 4 * (y * c.width + x); if (Math.abs(data[i] - 0x2a) + Math.abs(data[i + 1] - 0x8b) + Math.abs(data[i + 2] - 0xd6) < 24) n++; }
        return n;
      });
    });
    assert.ok(columns[0] >= columns[1] + 3, `${columns} pixels: no mark is drawn`);
    await shot(p, 'exemplars');
  });

  check('Open in Grafana holds the queries, the range and the data source', async () => {
    const { page: p, open } = await page();
    await open(hash('explore', { q: 'sum(cpu_usage)', from: 'now-3h' }));
    await p.waitForSelector('.legend-row:nth-child(2)');
    await p.getByRole('button', { name: 'Grafana' }).click();
    await p.getByLabel('address').fill('https://grafana.example/sub/');
    await p.getByLabel('data source').fill('uid-1');
    await p.getByRole('button', { name: 'Keep' }).click();
    const panes = async () => {
      const url = new URL(await p.locator('#grafana').getAttribute('href'));
      assert.equal(url.origin + url.pathname, 'https://grafana.example/sub/explore');
      return JSON.parse(url.searchParams.get('panes')).a;
    };
    assert.deepEqual(await panes(), { datasource: 'uid-1', queries: [{ refId: 'A', expr: 'sum(cpu_usage)', range: true, datasource: { type: 'prometheus', uid: 'uid-1' } }], range: { from: 'now-3h', to: 'now' } });
    assert.deepEqual([await p.locator('#grafana').getAttribute('target'), await p.locator('#grafana').getAttribute('rel')], ['_blank', 'noreferrer']);
    await open(hash('explore', { q: 'cpu_usage', from: String(now - 600), to: String(now) }));
    await p.reload();
    await p.waitForSelector('#grafana');
    assert.deepEqual((await panes()).range, { from: String((now - 600) * 1000), to: String(now * 1000) }, 'Grafana wants milliseconds');
  });

  check('the parts of a query have colours of their own', async () => {
    const { page: p, open } = await page();
    await open(hash('explore', { q: 'sum by (host) (rate(requests_total{host=~"web.*"}[5m])) > 10' }));
    await p.locator('[data-query="A"] .cm-content span', { hasText: 'rate' }).first().waitFor();
    const colours = await p.locator('[data-query="A"] .cm-line span').evaluateAll((all) => Object.fromEntries(all.filter((e) => e.children.length === 0).map((e) => [e.textContent, getComputedStyle(e).color])));
    const plain = await p.locator('[data-query="A"] .cm-content').evaluate((e) => getComputedStyle(e).color);
    for (const part of ['sum', 'by', 'rate', '"web.*"', '10']) assert.ok(colours[part] && colours[part] !== plain, `${part} has the colour of plain text: ${JSON.stringify(colours)}`);
    assert.equal(new Set([colours.rate, colours['"web.*"'], colours['10']]).size, 3, JSON.stringify(colours));
  });

  check('the table picker leads to another table, and the view stays', async () => {
    const { page: p, open } = await page();
    await open(hash('cardinality', { table: 'default' }));
    await shown(p, '#by-name', /cpu_usage/);
    await p.locator('#table').selectOption('team-sensors');
    await shown(p, '#by-name', /^(?![\s\S]*cpu_usage)[\s\S]*temperature_value|temperature/);
    assert.match(p.url(), /#\/cardinality\?table=team-sensors/);
    await p.goBack();
    await shown(p, '#by-name', /cpu_usage/);
    assert.equal(await p.locator('#table').inputValue(), 'default');
  });

  check('what is dragged over is zoomed into, and the address brings it all back', async () => {
    const { page: p, open } = await page();
    await open(hash('explore', { q: 'cpu_usage', from: String(now - 7200), to: String(now) }));
    await p.waitForSelector('.legend-row:nth-child(5)');
    await p.getByRole('button', { name: 'Add query' }).click();
    await p.locator('[data-query="B"] .cm-content').click();
    await p.keyboard.type('max(cpu_usage) by (role)'); // as fast as it goes: no letter is lost
    assert.match(await p.locator('[data-query="B"] .cm-content').innerText(), /^max\(cpu_usage\) by \(role\)$/);
    await p.getByRole('button', { name: 'Run', exact: true }).click();
    await p.locator('.legend-row', { hasText: 'B ' }).first().waitFor();
    const box = await boxOf(p, '.u-over');
    await p.mouse.move(box.x + box.width * 0.25, box.y + 60);
    await p.mouse.down();
    await p.mouse.move(box.x + box.width * 0.75, box.y + 90, { steps: 6 });
    await p.mouse.up();
    await p.waitForFunction((was) => Number(new URLSearchParams(location.hash.split('?')[1]).get('from')) > was + 60, now - 7200);
    const q = new URLSearchParams(new URL(p.url()).hash.split('?')[1]);
    near(Number(q.get('from')), now - 5400, 0.02 * 7200);
    near(Number(q.get('to')), now - 1800, 0.02 * 7200);
    const other = await page();
    await other.page.goto(p.url());
    await other.page.locator('.legend-row:nth-child(6)').waitFor();
    const legend = await shown(other.page, '.legend', /B /);
    await shown(p, '.legend', (text) => text === legend); // until its answer is here, this page shows the one of the whole range
    assert.match(await other.page.locator('[data-query="B"] .cm-content').innerText(), /max\(cpu_usage\) by \(role\)/);
  });

  check('errors, warnings and infos are the words of the API', async () => {
    const { page: p, open } = await page({ expect: ['400 (Bad Request)'] });
    await open(hash('explore', { q: 'rate(cpu_usage[5m]' }));
    const { error, errorType } = await api(one.base, 't/default/api/v1/query_range', { query: 'rate(cpu_usage[5m]', start: '0', end: '1', step: '1' });
    assert.ok((await shown(p, '.notice.bad', /unclosed/)).includes(`${errorType}: ${error}`));
    await open(hash('explore', { q: 'rate(cpu_usage[5m])', from: String(now - 600), to: String(now) }));
    const { infos } = await api(one.base, 't/default/api/v1/query_range', { query: 'rate(cpu_usage[5m])', start: String(now - 600), end: String(now), step: '15' });
    assert.ok(infos.length > 0);
    for (const i of infos) assert.ok((await shown(p, '.notice.info', /info:/)).includes(i), i);
    await shot(p, 'infos');
  });

  check('a hidden tab asks for nothing', async () => {
    const { page: p, open, requests } = await page();
    await open(hash('explore', { q: 'cpu_usage', every: '2' }));
    await p.waitForSelector('.legend-row:nth-child(5)');
    const hide = (hidden) => p.evaluate((h) => { Object.defineProperty(document, 'hidden', { value: h, configurable: true }); document.dispatchEvent(new Event('visibilitychange')); }, hidden);
    const asks = () => requests.filter((u) => u.includes('/api/v1/')).length;
    await hide(true);
    await p.waitForTimeout(300);
    const before = asks();
    await p.waitForTimeout(6000); // three refreshes of the query, one of the status
    assert.equal(asks(), before);
    await hide(false);
    const again = await p.waitForResponse((r) => r.url().includes('/query_range'));
    assert.equal(again.status(), 200);
  });
});

describe('the other views', () => {
  check('tables: rows, times and retention are those of the API', async () => {
    const { page: p, open } = await page();
    await open(hash('tables'));
    const { data } = await api(one.base, 'api/v1/status/cluster', { partitions: 'none' });
    for (const t of data.tables) {
      const row = p.locator(`[data-table="${t.name}"]`);
      await row.waitFor();
      const cells = await row.locator('td').allInnerTexts();
      assert.equal(cells[1].replaceAll(',', ''), String(t.rows));
      assert.equal(cells[5], 'for ever');
      assert.equal(cells[6], String(t.partition_count));
    }
    await shown(p, '#table-details', /1970-01-02 00:00:00/);
    await p.waitForFunction(() => !document.querySelector('#tables .unknown'));
    await shot(p, 'tables');
  });

  check('tables: the forecast of a cluster, the partitions laid out, and the errors of those that ended', async () => {
    const { page: p, open } = await page();
    const at = (minutes) => new Date((now + minutes * 60) * 1000).toISOString();
    const column = {
      ring_lo: 0, ring_hi: 1, since: at(-2880), days: 2, known: true, rows_per_second: 1000, bytes_per_row: 2.5,
      points: Array.from({ length: 13 }, (_, i) => ({ at: at(i * 10), bytes_per_second: 2500 + i * 10 })),
      partitions: [
        { id: 11, from: at(-40), to: at(-20), bytes: 1100, expected: false, server: 's1' }, { id: 12, from: at(-20), to: at(-1), bytes: 950, expected: false, server: 's2' },
        { id: 13, from: at(-1), to: at(20), bytes: 1010, expected: true, server: 's3' }, { id: 14, from: at(20), to: at(40), bytes: null, expected: false, server: '' },
      ],
    };
    await p.route('**/api/v1/status/cluster*', async (route) => {
      const answer = await route.fetch();
      const body = await answer.json();
      body.data.role = 'gateway';
      for (const t of body.data.tables) {
        Object.assign(t, { smear: { setting: 'auto', window_ns: 30e9, why: 'long enough' }, staged: [{ server: 's1', rows: 70, bytes: 4200, later_rows: 70, sole_rows: 0, oldest: at(0) }] });
        if (new URL(route.request().url()).searchParams.get('forecast')) Object.assign(t, { forecast: [column], target_bytes: 1000, partition_width_ns: 3600e9 });
      }
      await route.fulfill({ response: answer, json: body });
    });
    await open(hash('tables', { table: 'default' }));
    await shown(p, '#forecast', /off by 10 % in the median, 10 % at most/);
    assert.deepEqual(await p.locator('#forecast [data-partition]').evaluateAll((rows) => rows.map((r) => r.dataset.partition)), ['11', '12', '13', '14']);
    await shown(p, '#forecast [data-partition="13"]', /expected/);
    await shown(p, '#forecast [data-partition="14"]', /unknown/);
    await p.waitForSelector('#forecast canvas');
    await shown(p, '#smear', /rows wait up to 30 s/);
    await shot(p, 'tables-forecast');
    // The list of partitions has it, too, and each leads to the partition.
    await open(hash('partitions', { table: 'default' }));
    await shown(p, '#forecast [data-partition="13"]', /expected/);
    await p.locator('#forecast a', { hasText: '13' }).click();
    assert.match(p.url(), /#\/partitions\?table=default&partition=13$/);
    await open(hash('tables', { table: 'default' }));
    await shown(p, '#smear', /rows wait up to 30 s/);
    await p.getByRole('button', { name: 'Switch it off' }).click();
    await shown(p, '#smear pre', /^spillway table set default --smear=off$/);
    await p.context().grantPermissions(['clipboard-read', 'clipboard-write']);
    await p.getByRole('button', { name: 'Copy the command' }).click();
    await p.getByRole('button', { name: 'Copied' }).waitFor();
    assert.equal(await p.evaluate(() => navigator.clipboard.readText()), 'spillway table set default --smear=off');
    await shot(p, 'smear-switch');
    await p.setViewportSize({ width: 390, height: 844 });
    const panel = await p.locator('#smear .menu-panel').evaluate((e) => { const r = e.getBoundingClientRect(); return [r.left, r.right, document.documentElement.scrollWidth]; });
    assert.ok(panel[0] >= 0 && panel[1] <= 390 && panel[2] <= 390, `on a phone the panel is at ${panel}`);
    await p.locator('#smear').scrollIntoViewIfNeeded();
    await shot(p, 'phone-smear-switch');
    await p.setViewportSize({ width: 1280, height: 860 });
    await p.unroute('**/api/v1/status/cluster*');
    await open(hash('tables', { table: 'default' }));
    await p.reload();
    await shown(p, '#table-details', /map\s+version/);
    assert.equal(await p.locator('#smear').count(), 0, 'a process that is alone has nothing to smear over');
  });

  check('partitions: one row of 1970 does not hide the rest; search and a look inside', async () => {
    const { page: p, open } = await page();
    await open(hash('partitions'));
    const { data } = await api(one.base, 'api/v1/status/cluster', { table: 'default' });
    const all = data.tables[0].partitions;
    await shown(p, '#found', new RegExp(`^${all.length} partitions`));
    await p.waitForTimeout(200);
    // Every partition has some width: the coloured part of the map is most of it.
    const painted = await p.evaluate(() => { const c = document.getElementById('map'); const { data } = c.getContext('2d').getImageData(0, Math.floor(c.height / 3), c.width, 1); let n = 0; for (let i = 0; i < data.length; i += 4) if (data[i] === 0x2a && data[i + 1] === 0x8b) n++; return n / c.width; });
    assert.ok(painted > 0.7, `${painted} of the map is painted`);
    // The address has how it is drawn.
    await p.getByRole('button', { name: 'Linear' }).click();
    await p.getByRole('button', { name: 'Size' }).click();
    const other = await page();
    await other.page.goto(p.url());
    await other.page.getByRole('button', { name: 'Linear', pressed: true }).waitFor();
    await other.page.getByRole('button', { name: 'Size', pressed: true }).waitFor();
    await p.getByRole('button', { name: 'Compressed' }).click();
    await p.getByRole('button', { name: 'Leader' }).click();
    assert.ok(!/axis|by=/.test(p.url()), p.url());
    await p.fill('#find', '1970-01-02');
    await shown(p, '#found', new RegExp(`^1 of ${all.length}`));
    await shown(p, '#partitions tbody', /1970-01-02 00:00:00/);
    await p.fill('#find', '');
    await p.locator('#map').focus();
    await p.keyboard.press('ArrowRight');
    await shown(p, '#partition-details', /1970-01-02/);
    await p.keyboard.press('ArrowRight');
    const next = all.toSorted((a, b) => Date.parse(a.from) - Date.parse(b.from))[1];
    const text = await shown(p, '#partition-details', new RegExp(`Partition ${next.id}\\b`));
    assert.ok(text.replaceAll(',', '').includes(String(next.rows)), text);
    await shot(p, 'partitions');
  });

  check('partitions of a cluster: the epoch, the copies in sync and those behind; what is unknown says so', async () => {
    const { page: p, open } = await page();
    await p.route('**/api/v1/status/cluster*', async (route) => {
      const answer = await route.fetch();
      const body = await answer.json();
      body.data.role = 'gateway';
      body.data.servers = ['s1', 's2', 's3'].map((id) => ({ ...body.data.servers[0], id }));
      for (const t of body.data.tables) (t.partitions ?? []).forEach((x, i) => Object.assign(x, { servers: ['s1', 's2', 's3'], leader: 's2', epoch: 12, in_sync: ['s2', 's3'], behind: ['s1'] },
        i === 1 && { leader: undefined, epoch: undefined, in_sync: null, behind: null }, i === 2 && { epoch: 1, in_sync: ['s2'], behind: ['s1', 's3'], empty: true }));
      await route.fulfill({ response: answer, json: body });
    });
    const { data } = await api(one.base, 'api/v1/status/cluster', { table: 'default' });
    const ids = data.tables[0].partitions.map((x) => x.id);
    await open(hash('partitions', { partition: ids[0] }));
    const text = (id) => shown(p, id, /./);
    assert.deepEqual([await text('#epoch'), await text('#in-sync'), await text('#behind')], ['12', 's2 s3', 's1']);
    await shot(p, 'copies');
    await open(hash('partitions', { partition: ids[1] }));
    await shown(p, '#partition-details', new RegExp(`Partition ${ids[1]}\\b`));
    assert.deepEqual([await text('#epoch'), await text('#in-sync'), await text('#behind')], ['unknown', 'unknown', 'unknown']);
    await open(hash('partitions', { partition: ids[2] }));
    await shown(p, '#in-sync', /^s2 · no row was acknowledged yet$/);
    await p.fill('#find', 'behind');
    await shown(p, '#found', new RegExp(`^${ids.length - 2} of ${ids.length}`));
    await shown(p, `#partitions [data-partition="${ids[0]}"]`, /copies behind/);
    // What the button counts it also finds: the copies behind, and the one without a leader.
    const [, n] = /^(\d+) need a look$/.exec(await p.getByRole('button', { name: 'need a look' }).innerText());
    await p.getByRole('button', { name: 'need a look' }).click();
    await shown(p, '#found', new RegExp(`^${n} of ${ids.length}`));
    assert.equal(Number(n), ids.length - 1);
    assert.match(p.url(), /find=trouble/);
    await p.fill('#find', 'p' + ids[1]); // as commands write it
    await shown(p, '#found', new RegExp(`^1 of ${ids.length}`));
    await shown(p, '#partitions tbody', new RegExp(`^${ids[1]}\\b`));
  });

  check('partitions: those of a dead leader are hatched, and rows on their way are listed', async () => {
    const { page: p, open } = await page();
    const { data } = await api(one.base, 'api/v1/status/cluster', { table: 'default' });
    const all = data.tables[0].partitions.toSorted((a, b) => Date.parse(a.from) - Date.parse(b.from));
    await p.route('**/api/v1/status/cluster*', async (route) => {
      const answer = await route.fetch();
      const body = await answer.json();
      body.data.role = 'gateway';
      body.data.servers = ['s1', 's2'].map((id) => ({ ...body.data.servers[0], id, live: id !== 's2' }));
      for (const t of body.data.tables) for (const x of t.partitions ?? []) {
        const i = all.findIndex((y) => y.id === x.id);
        Object.assign(x, { leader: i === 1 ? 's2' : 's1', servers: ['s1', 's2'] });
        if (i === 2) x.transfers = [{ from: 's1', to: 's3', done_bytes: 25 * 1024, total_bytes: 100 * 1024, bytes_per_second: 5 * 1024, since: body.data.now, left_ns: 15e9 }];
        if (i === 3) x.transfers = [{ from: 's1', into: [91, 92], done_bytes: 0, total_bytes: 1024, bytes_per_second: 0, since: body.data.now, left_ns: null }];
      }
      await route.fulfill({ response: answer, json: body });
    });
    await open(hash('partitions'));
    await shown(p, '.map-legend', /s2 dead/);
    await p.fill('#find', 'dead');
    await shown(p, '#found', new RegExp(`^1 of ${all.length}`));
    await shown(p, '#partitions tbody', new RegExp(`^${all[1].id}\\b`));
    await p.getByRole('button', { name: '1 need a look' }).click();
    await shown(p, '#found', new RegExp(`^1 of ${all.length}`));
    await p.fill('#find', '');
    await p.waitForTimeout(200);
    // Along a line in the middle of each partition: one colour, or stripes. The axis gives each the same width here, but for the gap behind the first.
    const stripes = await p.evaluate((n) => {
      const c = document.getElementById('map');
      const { data } = c.getContext('2d').getImageData(0, Math.floor(c.height / 3), c.width, 1);
      const at = (share) => new Set(Array.from({ length: 28 }, (_, i) => 4 * (Math.floor(share * c.width) - 14 + i)).map((i) => data.slice(i, i + 3).join())).size;
      return Array.from({ length: n }, (_, i) => at((i + 0.4) / n));
    }, all.length);
    assert.equal(stripes[0], 1, `${stripes}`);
    assert.ok(stripes[1] > 2, `a dead leader's partition is not hatched: ${stripes}`);
    assert.equal(stripes[2], 1, `${stripes}`);
    await shown(p, `#partitions [data-partition="${all[1].id}"]`, /leader dead/);
    const moves = await p.locator('#transfers tbody tr').allInnerTexts();
    assert.deepEqual(moves.map((t) => t.split(/\s*\t\s*/).filter(Boolean)), [
      [String(all[3].id), 's1', 'partitions 91, 92', '0 B of 1.00 KiB', 'unknown', 'unknown'],
      [String(all[2].id), 's1', 's3', '25.0 KiB of 100 KiB', '5.00 KiB/s', '15 s'],
    ]);
    assert.deepEqual(await p.locator('#transfers .bar > i').evaluateAll((bars) => bars.map((e) => e.style.width)), ['0%', '25%']);
    await p.locator('#transfers button', { hasText: String(all[2].id) }).click();
    await shown(p, '#partition-details', new RegExp(`Partition ${all[2].id}\\b`));
    await p.fill('#find', 'moving');
    await shown(p, '#found', new RegExp(`^2 of ${all.length}`));
    await shot(p, 'transfers', { fullPage: true });
  });

  check('tables: how much of a limit is used, and a retention', async () => {
    const limited = await standalone(['--config.file', '{dir}/spillway.yaml'], { 'spillway.yaml': 'limits:\n  defaults: {active_series: 10}\n' });
    try {
      const made = await fetch(limited.base + '/query?q=' + encodeURIComponent('CREATE DATABASE kept WITH DURATION 30d'), { method: 'POST' });
      assert.equal(made.status, 200, await made.text());
      assert.equal((await write(limited.base, 'kept', Array.from({ length: 9 }, (_, i) => `cpu,host=h${i} v=1 ${now}`))).status, 204);
      const { page: p, open } = await page({}, limited.base);
      await open(hash('tables', { table: 'kept' }));
      await shown(p, '[data-table="kept"]', /\t30d\t/);
      await shown(p, '.limits', /active_series\s*9 of 10/);
      assert.deepEqual(await p.locator('.limits .bar').evaluateAll((all) => all.map((e) => [e.className, e.firstElementChild.style.width])), [['bar warn', '90%']]);
      await shot(p, 'limits');
    } finally {
      await limited.stop();
    }
  });

  check('cardinality: counts are those of status/tsdb, and a name opens', async () => {
    const { page: p, open } = await page();
    await open(hash('cardinality'));
    const { data } = await api(one.base, 't/default/api/v1/status/tsdb', { limit: '20' });
    assert.equal(await shown(p, '[data-figure="series"]', /\d/), String(data.headStats.numSeries));
    const rows = await p.locator('#by-name li').evaluateAll((all) => all.map((e) => [e.querySelector('a').textContent, Number(e.querySelector('b').textContent)]));
    assert.deepEqual(rows, data.seriesCountByMetricName.map((c) => [c.name, c.value]));
    await p.locator('#by-name a', { hasText: 'requests_total' }).click();
    await shown(p, '#metric', /host\s+4/);
    await shot(p, 'cardinality');
  });

  check('cardinality: who writes, and who made the series of a name', async () => {
    const headers = { 'User-Agent': 'Telegraf/1.30.0 Go/1.22.3' };
    assert.equal((await write(one.base, 'plant', [`valve,line=1 open=1 ${now}`, `valve,line=2 open=1 ${now}`], headers)).status, 204);
    assert.equal((await write(one.base, 'plant', [`valve,line=3 open=1 ${now}`, `pump,line=1 on=0 ${now}`], { 'User-Agent': 'curl/8.5.0' })).status, 204);
    assert.equal((await write(one.base, 'plant', [`valve,line=1 open=0 ${now + 1}`], headers)).status, 204);
    const { page: p, open } = await page();
    await open(hash('cardinality', { table: 'plant' }));
    await shown(p, '#written-by [data-agent^="Telegraf"]', /^Influx v1\t–\tTelegraf\/1\.30\.0 Go\/1\.22\.3\tloopback\t3\t2\t2\t/);
    await shown(p, '#written-by [data-agent^="curl"]', /\t2\t1\t2\t/);
    await shown(p, '#written-by', (t) => t.includes('since its start') && !t.includes('Left out'));
    const by = (name) => p.locator('#by-name li', { hasText: name }).locator('em').innerText();
    assert.equal(await by('valve_open'), 'curl/8.5.0 and 1 more');
    assert.equal(await by('pump_on'), 'curl/8.5.0');
    // All of them came a moment ago. Of a minute of the clock that has just ended a part counts.
    await shown(p, '#written-by [data-agent^="Telegraf"]', (t) => { const n = Number(t.split('\t')[7]); return n > 0 && n <= 2; }, 'its new series of the last minute');
    await p.locator('#by-name a', { hasText: 'valve_open' }).click();
    await shown(p, '#metric-new', /^[\d.]+ in the last minute · 3 since the start$/);
    await shown(p, '#metric-by', /curl\/8\.5\.0 · from loopback: 1 new series\n.*Telegraf\/1\.30\.0 Go\/1\.22\.3 · from loopback: 2 new series/);
    await shot(p, 'senders', { fullPage: true });
  });

  check('cardinality: a thousand series fit their columns, and the address has how many are listed', async () => {
    assert.equal((await write(one.base, 'wide', Array.from({ length: 1200 }, (_, i) => `room,id=r${i} value=1 ${now}`))).status, 204);
    const { page: p, open } = await page();
    await open(hash('cardinality', { table: 'wide' }));
    await p.locator('.top li', { hasText: 'id=r' }).first().waitFor();
    const heights = await p.locator('.top li').evaluateAll((all) => [...new Set(all.map((e) => Math.round(e.getBoundingClientRect().height)))]);
    assert.equal(heights.length, 1, `0.08 % is broken into two lines: ${heights}`);
    await p.getByRole('button', { name: '100', exact: true }).click();
    await p.locator('.top').nth(1).locator('li').nth(99).waitFor();
    const other = await page();
    await other.page.goto(p.url());
    await other.page.locator('.top').nth(1).locator('li').nth(99).waitFor();
  });

  check('an empty table says where its own writers send to', async () => {
    const { page: p, open } = await page({ expect: ['404 (Not Found)'] }); // there is no such table
    await open(hash('explore', { table: 'nothing-yet' }));
    const text = await shown(p, 'main', /There is nothing in table nothing-yet yet/);
    for (const path of ['write?db=nothing-yet', 't/nothing-yet/api/v1/write', 't/nothing-yet/v1/metrics']) assert.ok(text.includes(`${one.base}/${path}`), `${path} in ${text}`);
    const res = await fetch(`${one.base}/t/nothing-yet/v1/metrics`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ resourceMetrics: [{ scopeMetrics: [{ metrics: [{ name: 'sent', gauge: { dataPoints: [{ timeUnixNano: String(BigInt(now) * 1000000000n), asDouble: 1 }] } }] }] }] }) });
    assert.equal(res.status, 200);
    await p.reload();
    await shown(p, 'main', /Metrics of table nothing-yet[\s\S]*sent/);
  });

  check('activity: refusals with their reasons, failed queries, rates', async () => {
    const bad = await write(one.base, 'default', ['cpu usage=']);
    assert.equal(bad.status, 400);
    await fetch(one.base + '/api/v1/query?query=' + encodeURIComponent('cpu_usage + on(role) cpu_usage'));
    const { page: p, open } = await page();
    await open(hash('activity'));
    await shown(p, '#refusals', (t) => t.includes(JSON.parse(bad.text).error) && t.includes('Influx v1'));
    await shown(p, '#slow-queries', /cpu_usage \+ on\(role\) cpu_usage[\s\S]*many-to-many/);
    await shown(p, '[data-figure="samples"]', /\/s$/);
    await p.waitForSelector('.small-plot canvas, .quiet');
    await shot(p, 'activity', { fullPage: true });
  });

  check('activity: of an HA pair the elected replica and the other one', async () => {
    const { page: p, open } = await page();
    await open(hash('activity'));
    await shown(p, '#refusals', /Refused writes/);
    assert.equal(await p.locator('#pairs').count(), 0, 'no pair, no table of pairs');
    const ha = await standalone(['--config.file', '{dir}/spillway.yaml'], { 'spillway.yaml': 'ha: {enabled: true}\n' });
    try {
      for (const replica of ['prometheus-0', 'prometheus-1']) {
        const res = await write(ha.base, 'default', [`up,cluster=prod,__replica__=${replica} value=1 ${now}`]);
        assert.equal(res.status, 204, res.text);
      }
      const { page: p, open } = await page({}, ha.base);
      await open(hash('activity'));
      await shown(p, '#pairs [data-pair="prod"]', /default\s+prod\s+prometheus-0[\s\S]*prometheus-1[\s\S]*the same/);
      await shot(p, 'pairs', { fullPage: true });
    } finally {
      await ha.stop();
    }
  });

  check('servers: the one there is lives, with its disk', async () => {
    const { page: p, open } = await page();
    await open(hash('servers'));
    await shown(p, '[data-server="local"]', /live[\s\S]*free of[\s\S]*none/);
  });

  check('the rates of a gateway are called its own; those of all gateways are sums, or unknown', async () => {
    const { page: p, open, requests } = await page();
    let metrics = false;
    const asked = [];
    await p.route('**/api/v1/status/cluster*', async (route) => {
      const answer = await route.fetch();
      const body = await answer.json();
      body.data.role = 'gateway';
      if (metrics) body.data.tables.push({ ...body.data.tables[0], name: '_spillway' });
      await route.fulfill({ response: answer, json: body });
    });
    await p.route('**/t/_spillway/api/v1/query?*', (route) => {
      const query = new URL(route.request().url()).searchParams.get('query');
      asked.push(query);
      const of = { samples: '1234', queries: '5', series: '0.5', bytes: '2048' };
      const v = /tables/.test(query) ? '3' : of[/samples|queries|series|bytes/.exec(query)?.[0]];
      return route.fulfill({ json: { status: 'success', data: { resultType: 'vector', result: v && !/refused/.test(query) ? [{ metric: {}, value: [now, v] }] : [] } } });
    });
    await open(hash('activity'));
    await shown(p, '#scope', /are of the gateway that answers, not of the cluster.*unknown.*_spillway/);
    await shown(p, '.figures', (t) => t.split('all gateways: unknown').length === 6, 'five figures are of all gateways');
    assert.ok(!requests.some((u) => u.includes('/t/_spillway/')), 'who cannot read the table asks for nothing');
    metrics = true;
    await p.reload();
    await shown(p, '#scope', /Sums over 3 gateways/);
    const figures = await shown(p, '.figures', /1\.234k\/s/);
    for (const part of ['all gateways: 1.234k/s', 'all gateways: 5/s', 'all gateways: 30', 'all gateways: 0/s', '2.00 KiB/s']) assert.ok(figures.includes(part), `${part} in ${figures}`);
    await shot(p, 'all-gateways', { fullPage: true });
    await open(hash('activity', { table: 'team-sensors', of: 'table' }));
    await p.waitForFunction(() => document.querySelector('#scope')?.textContent.includes('3 gateways'));
    assert.ok(asked.includes('sum(rate(spillway_limits_queries_total{table="team-sensors"}[1m]))'), asked.join('\n'));
    await open(hash('tables'));
    await shown(p, '.figures', /samples\s+\S+\s+all gateways: 1\.234k\/s\s+queries\s+\S+\s+all gateways: 5\/s/);
    await p.unroute('**/api/v1/status/cluster*');
    await p.reload();
    await shown(p, '.figures', (t) => !t.includes('gateway'));
    assert.equal(await p.locator('#scope').count(), 0, 'a process that is alone knows all');
  });

  check('servers of a cluster: which take the rows, over time', async () => {
    const { page: p, open } = await page();
    // What each answer says: s1 takes 1000 rows in five seconds, then s2 does; the fourth comes from another process.
    const answers = [[7000, 10], [8000, 10], [8000, 1010], [5, 5], [505, 5]];
    let asked = 0;
    await p.route('**/api/v1/status/cluster*', async (route) => {
      const answer = await route.fetch();
      const body = await answer.json();
      const at = Math.min(asked++, answers.length - 1);
      Object.assign(body.data, { role: 'gateway', now: new Date((now + 5 * at) * 1000).toISOString(), grown_since: at < 3 ? 'first' : 'second' });
      body.data.servers = answers[at].map((grown, i) => ({ ...body.data.servers[0], id: `s${i + 1}`, grown }));
      await route.fulfill({ response: answer, json: body });
    });
    await p.clock.install();
    await open(hash('servers'));
    await shown(p, '#taken', /the lines begin at the third time/);
    const next = async (a, b) => {
      await p.clock.runFor(5000);
      await shown(p, '[data-taken="s1"]', (t) => t.trim() === `s1 ${a}`);
      await shown(p, '[data-taken="s2"]', (t) => t.trim() === `s2 ${b}`);
    };
    await next('200/s', '0/s');
    await next('0/s', '200/s');
    await p.waitForSelector('#taken canvas');
    await shot(p, 'servers-taken');
    await next('unknown', 'unknown');
    await next('100/s', '0/s');
  });

  check('dark is dark, by the system and by choice', async () => {
    const { page: p, open } = await page({ dark: true });
    await open(hash('explore', { q: 'sum by (host) (rate(requests_total[5m]))', from: 'now-3h' }));
    await p.waitForSelector('.legend-row:nth-child(5)');
    const light = () => p.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3).reduce((a, v) => a + Number(v), 0));
    assert.ok((await light()) < 120);
    await shot(p, 'dark');
    await p.getByRole('button', { name: 'Settings' }).click();
    await p.getByRole('button', { name: 'Light' }).click();
    assert.ok((await light()) > 600);
    await p.reload();
    await p.waitForSelector('.legend-row:nth-child(5)');
    assert.ok((await light()) > 600, 'the choice is kept');
  });

  check('nothing is wider than a phone', async () => {
    const { page: p, open } = await page({ width: 390, height: 844 });
    for (const [view, params] of [['explore', { q: 'requests_total' }], ['explore', { q: 'requests_total', view: 'instant' }], ['explore', { q: 'requests_total', view: 'table' }], ['activity'], ['cardinality', { metric: 'requests_total' }], ['tables'], ['partitions', { partition: '1' }], ['servers']]) {
      await open(hash(view, params));
      await p.waitForSelector('main .card');
      await p.waitForFunction(() => !document.querySelector('main .loading'));
      const over = await p.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `${view} is ${over} px too wide`);
      const tab = await p.evaluate(() => { const r = document.querySelector('nav [aria-current]').getBoundingClientRect(); return [r.left, r.right]; });
      assert.ok(tab[0] >= 0 && tab[1] <= 390, `the tab of ${view} is at ${tab}, beyond the screen`);
      await shot(p, 'phone-' + view + (params?.view ?? ''));
    }
  });
});

describe('with tokens', () => {
  const token = 'a-token-of-the-test-0123456789';
  let guarded;
  before(async () => {
    const sum = (t) => createHash('sha256').update(t).digest('hex');
    guarded = await standalone(['--tokens.file', '{dir}/tokens.yml'], {
      'tokens.yml': `tokens:\n  - {name: all, sha256: ${sum('all-' + token)}, scopes: [{tables: ["*"], may: [read, write]}]}\n  - {name: one, sha256: ${sum(token)}, scopes: [{tables: [team-a], may: [read, write]}]}\n`,
    });
    for (const t of ['team-a', 'team-b']) assert.equal((await write(guarded.base, t, [`secret_of_${t.at(-1)} value=7`], { Authorization: 'Bearer all-' + token })).status, 204);
    await write(guarded.base, 'team-b', ['refused_of_b v='], { Authorization: 'Bearer all-' + token });
  });
  after(() => guarded?.stop());

  check('the page asks for one, keeps it in the tab, and shows its table alone', async () => {
    const { page: p, open } = await page({ expect: ['401 (Unauthorized)', '403 (Forbidden)'] }, guarded.base);
    await open('');
    await p.fill('#secret', 'wrong');
    await p.getByRole('button', { name: 'Enter' }).click();
    await shown(p, '.notice.bad', /unauthorized: the token or password is not known here/);
    await shot(p, 'login');
    await p.fill('#secret', token);
    await p.keyboard.press('Enter');
    await shown(p, 'main', /secret_of_a/);
    assert.deepEqual(await p.locator('#table option').allInnerTexts(), ['team-a']);
    assert.match(await p.evaluate(() => sessionStorage.getItem('spillway.authorization')), /^Bearer /);
    assert.equal(await p.evaluate(() => JSON.stringify({ ...localStorage }).includes('Bearer')), false);
    await p.reload();
    await shown(p, 'main', /secret_of_a/);
    await open(hash('activity', { table: 'team-a' }));
    await shown(p, '#refusals', /None since the start/);
    await open(hash('tables', { table: 'team-a' }));
    assert.ok(!(await shown(p, '#tables', /team-a/)).includes('team-b'));
    await open(hash('cardinality', { table: 'team-a' }));
    await shown(p, '#written-by tbody', (t) => t.includes('\tall\t') && !t.includes(token), 'the name of the token that wrote');
    await open(hash('cardinality', { table: 'team-b' }));
    await shown(p, '.notice.bad', /forbidden/);
    assert.ok(!(await p.locator('main').innerText()).includes('secret_of_b'));
    const other = await page({ expect: ['401 (Unauthorized)'] }, guarded.base);
    await other.open('');
    await other.page.waitForSelector('#secret'); // another tab has nothing
  });
});

describe('a cluster', { skip: process.env.PAGE_CLUSTER === '0' ? 'PAGE_CLUSTER is 0' : false }, () => {
  let three;
  before(async () => { three = await cluster(); }, { timeout: 120_000 });
  after(async () => {
    for (const pid of Object.values(three?.pids ?? {})) process.kill(pid, 'SIGCONT');
    await three?.stop();
  });

  test('servers: the leader takes the rows that are written, and smearing is off with a way to switch it on', { timeout: 90_000 }, async () => {
    const end = Date.now() + 30_000;
    for (let res; (res = await write(three.base, 'load', [`load,host=a value=1 ${now}`])).status !== 204;) {
      if (Date.now() > end) assert.fail(res.text);
      await new Promise((r) => setTimeout(r, 500));
    }
    const { page: p, open } = await page({ expect: ['503'] }, three.base);
    await open(hash('servers', { table: 'load' }));
    await shown(p, '#taken', /the lines begin at the third time/);
    const { data } = await api(three.base, 'api/v1/status/cluster', { table: 'load' });
    const { leader } = data.tables[0].partitions[0];
    const rate = (t) => { const [, n, k] = /([\d.]+)(k?)\/s/.exec(t) ?? [0, NaN]; return n * (k ? 1000 : 1); };
    assert.equal((await write(three.base, 'load', Array.from({ length: 50_000 }, (_, i) => `load,host=h${i} value=1 ${now}`))).status, 204);
    await shown(p, `[data-taken="${leader}"]`, (t) => rate(t) > 5000, 'the leader took 50,000 rows in some five seconds, beside those of the metrics of processes');
    for (const s of ['s1', 's2', 's3'].filter((s) => s !== leader)) await shown(p, `[data-taken="${s}"]`, (t) => rate(t) < 5000, `${s} took none of them`);
    await open(hash('tables', { table: 'load' }));
    await shown(p, '[data-table="_spillway"]', /\tnot counted\t/); // it grows, and no request brings its rows
    await shown(p, '#smear', /^off/);
    await p.getByRole('button', { name: 'Switch it on' }).click();
    await shown(p, '#smear pre', /^spillway table set load --smear=auto$/);
  });

  test('activity: what another gateway accepts is in the sums over all', { timeout: 90_000 }, async () => {
    const end = Date.now() + 60_000;
    const { page: p, open } = await page({ expect: ['503'] }, three.base);
    await open(hash('activity', { table: 'elsewhere', of: 'table' }));
    for (let n = 0; ; n++) {
      await write(three.other, 'elsewhere', Array.from({ length: 1000 }, (_, i) => `seen,host=h${i} value=${n} ${now}`));
      const text = await p.locator('.figures').innerText();
      const [, own, all] = /samples\s+([\d.]+)\/s\s+all gateways: ([\d.]+)/.exec(text) ?? [0, NaN, NaN];
      if (all > 20) {
        assert.equal(own, '0', 'the gateway that is asked accepted none');
        break;
      }
      if (Date.now() > end) assert.fail(text);
      await new Promise((r) => setTimeout(r, 500));
    }
    await shown(p, '#scope', /Sums over 2 gateways/);
    await shot(p, 'cluster-activity', { fullPage: true });
  });

  test('what a server that is away holds is unknown, and there is one banner for it', { timeout: 90_000 }, async () => {
    const day = 86400;
    const rows = Array.from({ length: 12 }, (_, i) => `spread,host=a value=${i} ${now - i * day}`);
    const end = Date.now() + 30_000;
    for (let res; (res = await write(three.base, 'default', rows)).status !== 204;) {
      if (Date.now() > end) assert.fail(res.text);
      await new Promise((r) => setTimeout(r, 500));
    }
    const { page: p, open } = await page({ expect: ['503'] }, three.base);
    await open(hash('tables'));
    await shown(p, '[data-table="default"]', (t) => t.includes('\t12\t'), 'all rows are counted');
    const { data } = await api(three.base, 'api/v1/status/cluster', { table: 'default' });
    const victim = data.tables[0].partitions.find((q) => q.leader).leader;
    process.kill(three.pids[victim], 'SIGSTOP');
    await shown(p, '[data-table="default"]', /unknown/);
    assert.ok(!/\t0\t/.test(await p.locator('[data-table="default"]').innerText()), 'no count became 0');
    await shown(p, '.banners', new RegExp(`Storage server ${victim} .* shows no heartbeat`));
    const banners = await p.locator('.banners .notice').allInnerTexts();
    assert.equal(new Set(banners).size, banners.length);
    assert.equal(banners.length, 1, banners.join('\n'));
    await open(hash('servers'));
    await shown(p, `[data-server="${victim}"]`, /no heartbeat[\s\S]*unknown/);
    await shot(p, 'cluster-servers');
    await open(hash('partitions'));
    await shown(p, '#partitions', /unknown/);
    await shot(p, 'cluster-partitions');
    const of = data.tables[0].partitions.find((q) => q.leader && q.leader !== victim);
    await open(hash('partitions', { partition: of.id }));
    await shown(p, '#in-sync', new RegExp(`^${of.leader}$`));
    await shown(p, '#behind', /^none$/);
    await shown(p, '#epoch', new RegExp(`^${of.epoch}$`));
    process.kill(three.pids[victim], 'SIGCONT');
    await open(hash('tables'));
    await shown(p, '[data-table="default"]', (t) => t.includes('\t12\t'), 'all rows are counted again');
  });
});

/** boxOf is where an element is, once it stays: a plot is made anew when its lines are others. */
async function boxOf(p, selector) {
  await p.waitForTimeout(300);
  for (let i = 0; ; i++) {
    const box = await p.locator(selector).boundingBox({ timeout: 5000 }).catch(() => null);
    if (box || i === 20) return box;
    await p.waitForTimeout(100);
  }
}

function near(got, want, by = Math.abs(want) * 2e-3 + 1e-9) {
  assert.ok(Math.abs(got - want) <= by, `${got} instead of ${want}`);
}

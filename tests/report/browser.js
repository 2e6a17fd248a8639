// browser.js CHROMIUM SCRATCH FOLDER: opens the pages that browser.sh made, offline, wide and narrow. Charts drawn, zoom
// and filters at work, nothing fetched, nothing logged as an error, nothing wider than the screen or over anything else.
'use strict';
const fs = require('fs');
const {launch} = require('./chromium.js');
const [, , executablePath, scratch, folder] = process.argv;
const faults = [];
const check = (good, text) => { if (!good) faults.push(text); };

async function open(browser, name, file, width, expected) {
  const context = await browser.newContext({viewport: {width, height: 900}, offline: true});
  const tab = await context.newPage();
  const at = text => `${name}, ${width} px: ${text}`;
  tab.on('console', m => check(m.type() !== 'error', at('console: ' + m.text())));
  tab.on('pageerror', e => faults.push(at(String(e))));
  tab.on('request', r => check(r.url().startsWith('file://' + file) || r.url().startsWith('data:'), at('fetched ' + r.url())));
  await tab.goto('file://' + file);
  await tab.waitForFunction(() => window.cleaveReport && window.cleaveReport.ready);
  const seen = await tab.evaluate(() => {
    const there = e => e.offsetParent !== null && e.clientWidth > 0;
    // A chart is drawn when its canvas holds more than one colour.
    const blank = c => {
      const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);
      return d.every(v => v === d[0]);
    };
    // Figures, cards, headings and canvases of the page's flow, none of which may cover another.
    const boxes = [...document.querySelectorAll('figure, .card, h2, #timeline, #legend .key, .line')].filter(there).map(e => [e.id || e.textContent.slice(0, 30), e.getBoundingClientRect()]);
    const over = [];
    boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
      if (Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1 && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 1) over.push(a + ' / ' + b);
    }));
    // Text of a chart's own legend or caption must fit its figure.
    const cut = [...document.querySelectorAll('figcaption, .u-legend, .card b, .card span')].filter(there).filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 40));
    return {wide: document.documentElement.scrollWidth > window.innerWidth, charts: Object.keys(cleaveReport.charts), over, cut,
      blank: [...document.querySelectorAll('canvas')].filter(there).filter(blank).map(c => c.id || c.closest('.chart').id)};
  });
  check(!seen.wide, at('wider than the screen'));
  check(seen.blank.length === 0, at('blank: ' + seen.blank));
  check(seen.over.length === 0, at('overlap: ' + seen.over));
  check(seen.cut.length === 0, at('cut off: ' + seen.cut));
  for (const id of expected) check(seen.charts.includes(id), at('no chart ' + id));
  await tab.screenshot({path: `${folder}/${name}-${width}.png`, fullPage: true});
  return {tab, at, close: async () => {
    check((await tab.evaluate(() => cleaveReport.errors.length)) === 0, at('an error was caught'));
    await context.close();
  }};
}

async function useTimeline({tab, at}, width) {
  const length = () => tab.evaluate(() => cleaveReport.view.to - cleaveReport.view.from);
  const rows = () => tab.evaluate(() => cleaveReport.view.rows.length);
  const drawn = () => tab.evaluate(() => cleaveReport.spansDrawn);
  const before = await length();
  await tab.click('#zoom-in');
  check(Math.abs(await length() - before / 2) < 1e-9 * before, at('+ does not zoom'));
  await tab.click('#zoom-step');
  const all = await drawn();
  check(all > 0, at('no block is drawn in one step'));
  await (await tab.$('#s-timeline')).screenshot({path: `${folder}/step-${width}.png`});
  await tab.click('.key[data-lane=compute]');
  check(await drawn() < all, at('the filter hides nothing'));
  await tab.click('.key[data-lane=compute]');
  check(await drawn() === all, at('the filter does not let go'));
  await tab.selectOption('#group', 'laptop');
  check(await rows() === 4, at('laptops are not 3 rows and the server'));
  await tab.selectOption('#rows', 'profile');
  check(await rows() === 2, at('laptops are not one row and the server'));
  await tab.selectOption('#group', '');
  check(await rows() === 3, at('profiles are not two rows and the server'));
  await tab.selectOption('#rows', 'device');
  await tab.click('#zoom-all');
  check(Math.abs(await length() - before) < 1e-9 * before, at('"All" does not show all'));
  const box = await (await tab.$('#timeline')).boundingBox();
  await tab.mouse.dblclick(box.x + box.width / 2, box.y + 20);
  check(await length() < before, at('a double click does not zoom'));
  const from = await tab.evaluate(() => cleaveReport.view.from);
  await tab.mouse.move(box.x + box.width / 2, box.y + 20);
  await tab.mouse.down(); await tab.mouse.move(box.x + box.width / 2 - 40, box.y + 20); await tab.mouse.up();
  check(await tab.evaluate(() => cleaveReport.view.from) > from, at('dragging does not move'));
  check(/device|phone|laptop|server/.test(await tab.textContent('#timeline-tip')), at('pointing says nothing'));
  await tab.click('#s-input summary');
  await tab.check('#only-given');
  check(!/# default/.test(await tab.textContent('#input')), at('what was given is not told from defaults'));
}

// A step in stages: its layout is drawn, and what devices do has colours and switches of its own.
async function useStages({tab, at}) {
  const drawn = () => tab.evaluate(() => cleaveReport.spansDrawn);
  const layout = await tab.evaluate(() => JSON.parse(document.getElementById('data').textContent).runs[0].layout);
  const rows = await tab.$$eval('#stages .stage', all => all.map(row => ({name: row.querySelector('.name').textContent, boxes: row.querySelectorAll('.held').length, bars: row.querySelectorAll('.taken i').length, binds: row.querySelectorAll('.taken i.binds').length})));
  check(rows.length === layout.stages.length && rows.length > 1, at(`${rows.length} rows of ${layout.stages.length} stages`));
  layout.stages.slice().reverse().forEach((stage, i) => {
    check(rows[i] && rows[i].name.endsWith(stage.pieces) && rows[i].boxes === stage.replicas.length && rows[i].bars === 4 && rows[i].binds === 1, at('a stage is drawn as ' + JSON.stringify(rows[i])));
  });
  const filled = await tab.$eval('#stages .held i', e => e.getBoundingClientRect().height > 0 && getComputedStyle(e).backgroundColor !== 'rgba(0, 0, 0, 0)');
  check(filled, at('memory is not drawn'));
  await tab.click('#zoom-step');
  const all = await drawn();
  check(all > 0, at('no block of a step in stages is drawn'));
  for (const key of ['chunks', 'weights', 'owners']) {
    await tab.click(`.key[data-lane=${key}]`);
    check(await drawn() < all, at(`switching ${key} off hides nothing`));
    await tab.click(`.key[data-lane=${key}]`);
  }
  check(await drawn() === all, at('what was switched off does not come back'));
  const shades = await tab.evaluate(() => {
    const c = document.getElementById('timeline'), seen = new Set();
    const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
    for (let i = 0; i < d.length; i += 4) seen.add(`${d[i]},${d[i + 1]},${d[i + 2]}`);
    return ['86,180,233', '240,228,66', '59,74,90'].filter(color => !seen.has(color));
  });
  check(shades.length === 0, at('colours that are not in the timeline: ' + shades));
}

const CURVES = ['c-loss', 'c-time', 'c-bytes', 'c-energy'], DEVICES = ['c-busy', 'c-devbytes', 'c-memory', 'c-devenergy'];
(async () => {
  const browser = await launch(executablePath);
  for (const width of [1400, 400]) {
    const run = await open(browser, 'report', scratch + '/run/report.html', width, [...CURVES, ...DEVICES]);
    await useTimeline(run, width);
    await run.close();
    await (await open(browser, 'churn', scratch + '/churned/report.html', width, [...CURVES, ...DEVICES, 'c-churn', 'c-recovery'])).close();
    const both = await open(browser, 'compare', scratch + '/both.html', width, [...CURVES, ...DEVICES, 'c-compare']);
    await both.tab.selectOption('#compare-what', 'time_s');
    await both.tab.selectOption('#run', '1');
    check(await both.tab.textContent('#title') === 'churned', both.at('the picker does not change the run'));
    await both.close();
    await (await open(browser, 'simulate', scratch + '/simulated/report.html', width, [...DEVICES, 'c-sysbytes', 'c-sysmemory', 'c-sysenergy'])).close();
    const lossy = await open(browser, 'lossy', scratch + '/lossy/report.html', width, [...DEVICES, 'c-churn', 'c-recovery']);
    const {steps} = await lossy.tab.evaluate(() => JSON.parse(document.getElementById('data').textContent).runs[0].systems[0]);
    const lost = steps.reduce((sum, step) => sum + step.lost, 0), told = await lossy.tab.textContent('#churn');
    check(lost > 0 && told.includes(`left 1 ×. ${lost} block`), lossy.at(`of ${lost} lost blocks it says: ${told}`));
    await lossy.close();
    const staged = await open(browser, 'staged', scratch + '/staged/report.html', width, DEVICES);
    await useStages(staged);
    await staged.close();
    const sweep = await open(browser, 'sweep', scratch + '/sweep/report.html', width, ['c-sweep']);
    await sweep.tab.selectOption('#sweep-y', 'energy_J');
    check(/energy_J/.test(await sweep.tab.textContent('#sweep-caption')), sweep.at('another figure is not drawn'));
    await sweep.close();
  }
  const paper = await browser.newPage();
  await paper.goto('file://' + scratch + '/churned/report.html');
  await paper.pdf({path: folder + '/report.pdf', format: 'A4', margin: {top: '12mm', bottom: '12mm', left: '10mm', right: '10mm'}});
  check(fs.statSync(folder + '/report.pdf').size > 20000, 'the page does not print');
  await browser.close();
  console.log(faults.join('\n') || 'the pages are sound');
  process.exit(faults.length ? 1 : 0);
})().catch(e => { console.error(e); process.exit(1); });

// browser.js CHROMIUM PAGE FOLDER: opens the page offline, wide and narrow; charts drawn, zoom and filters at work,
// nothing fetched, nothing logged as an error, nothing wider than the screen.
'use strict';
const {launch} = require('./chromium.js');
const [, , executablePath, page, folder] = process.argv;
const faults = [];
const check = (good, text) => { if (!good) faults.push(text); };

async function look(browser, width) {
  const context = await browser.newContext({viewport: {width, height: 900}, offline: true});
  const tab = await context.newPage();
  const at = text => `${width} px: ${text}`;
  tab.on('console', m => check(m.type() !== 'error', at('console: ' + m.text())));
  tab.on('pageerror', e => faults.push(at(String(e))));
  tab.on('request', r => check(r.url().startsWith('file://' + page) || r.url().startsWith('data:'), at('fetched ' + r.url())));
  await tab.goto('file://' + page);
  await tab.waitForFunction(() => window.cleaveReport && window.cleaveReport.ready);
  const seen = await tab.evaluate(() => ({
    wide: document.documentElement.scrollWidth > window.innerWidth,
    charts: Object.keys(cleaveReport.charts),
    // A chart is drawn when its canvas holds more than one colour.
    blank: [...document.querySelectorAll('canvas')].filter(c => {
      const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, first = d.slice(0, 4).join();
      for (let i = 4; i < d.length; i += 4) if (d.slice(i, i + 4).join() !== first) return false;
      return true;
    }).map(c => c.id || c.parentNode.parentNode.parentNode.id),
  }));
  check(!seen.wide, at('wider than the screen'));
  check(seen.blank.length === 0, at('blank: ' + seen.blank));
  for (const id of ['c-loss', 'c-time', 'c-bytes', 'c-energy', 'c-busy', 'c-devbytes', 'c-memory', 'c-devenergy'])
    check(seen.charts.includes(id), at('no chart ' + id));
  await tab.screenshot({path: `${folder}/report-${width}.png`, fullPage: true});

  const length = () => tab.evaluate(() => cleaveReport.view.to - cleaveReport.view.from);
  const before = await length();
  await tab.click('#zoom-in');
  check(Math.abs(await length() - before / 2) < 1e-9 * before, at('+ does not zoom'));
  await tab.click('#zoom-step');
  const drawn = () => tab.evaluate(() => cleaveReport.spansDrawn);
  const all = await drawn();
  check(all > 0, at('no block is drawn in one step'));
  await (await tab.$('#s-timeline')).screenshot({path: `${folder}/step-${width}.png`});
  await tab.click('.key[data-lane=compute]');
  check(await drawn() < all, at('the filter hides nothing'));
  await tab.click('.key[data-lane=compute]');
  await tab.selectOption('#group', 'laptop');
  check(await tab.evaluate(() => cleaveReport.view.rows.length) === 4, at('laptops are not 3 rows and the server'));
  await tab.click('#zoom-all');
  check(Math.abs(await length() - before) < 1e-9 * before, at('"All" does not show all'));
  check((await tab.evaluate(() => cleaveReport.errors.length)) === 0, at('an error was caught'));
  await context.close();
}

(async () => {
  const browser = await launch(executablePath);
  for (const width of [1400, 400]) await look(browser, width);
  await browser.close();
  console.log(faults.join('\n') || 'the page is sound');
  process.exit(faults.length ? 1 : 0);
})().catch(e => { console.error(e); process.exit(1); });

// large.js CHROMIUM PAGE FOLDER: the page of a large fleet keeps its thread busy for at most 3 s until it is drawn, says what it left out, and can show all rows.
'use strict';
const {launch} = require('./chromium.js');
const [, , executablePath, page, folder] = process.argv;
const faults = [];
const check = (good, text) => { if (!good) faults.push(text); };

(async () => {
  const browser = await launch(executablePath);
  const opened = [];
  for (const width of [1400, 400]) {
    const tab = await (await browser.newContext({viewport: {width, height: 900}, offline: true})).newPage();
    tab.on('pageerror', e => faults.push(String(e)));
    const chrome = await tab.context().newCDPSession(tab), begun = Date.now();
    await chrome.send('Performance.enable', {timeDomain: 'threadTicks'});  // processor time: the machine may be busy
    await tab.goto('file://' + page);
    await tab.waitForFunction(() => window.cleaveReport && window.cleaveReport.ready);
    // Ready is when what was drawn has been painted.
    await tab.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));
    const {metrics} = await chrome.send('Performance.getMetrics');
    opened.push([metrics.find(m => m.name === 'TaskDuration').value, (Date.now() - begun) / 1000]);
    check(/one step or evaluation in/.test(await tab.textContent('#timeline-note')), 'the page does not say what it left out');
    check(await tab.evaluate(() => cleaveReport.view.rows.length) === 3, 'profiles are not two rows and the server');
    await tab.screenshot({path: `${folder}/large-${width}.png`, fullPage: true});
    await tab.selectOption('#rows', 'device');
    check(await tab.evaluate(() => cleaveReport.view.rows.length) === 1001, 'devices are not 1000 rows and the server');
    await tab.click('#scroll-down');
    check(await tab.evaluate(() => cleaveReport.view.top) > 0, 'rows do not scroll');
    await (await tab.$('#s-timeline')).screenshot({path: `${folder}/large-timeline-${width}.png`});
    await tab.context().close();
  }
  await browser.close();
  for (const [busy] of opened) check(busy > 0.01 && busy <= 3, `opening kept the page's thread busy for ${busy} s`);
  console.log(faults.join('\n') || `1000 devices: ` + opened.map(([busy, real]) => `${busy.toFixed(2)} s of processor, ${real.toFixed(2)} s in all`).join('; '));
  process.exit(faults.length ? 1 : 0);
})().catch(e => { console.error(e); process.exit(1); });

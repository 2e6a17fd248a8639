// viewer.js CHROMIUM TRACE FOLDER SCRATCH: opens trace.json in speedscope, from its own files and without a network.
// Every track must be there under its name, and nothing may be said about spans that do not nest.
'use strict';
const fs = require('fs');
const path = require('path');
const {launch} = require('./chromium.js');
const [, , executablePath, trace, folder, scratch] = process.argv;
const faults = [];

const events = JSON.parse(fs.readFileSync(trace)).traceEvents;
const processes = new Map(events.filter(e => e.name === 'process_name').map(e => [e.pid, e.args.name]));
const drawn = new Set(events.filter(e => e.ph === 'X').map(e => `${e.pid}:${e.tid}`));
const wanted = events.filter(e => e.name === 'thread_name' && drawn.has(`${e.pid}:${e.tid}`))
  .map(e => `${processes.get(e.pid)} (pid ${e.pid}), ${e.args.name} (tid ${e.tid})`);

(async () => {
  const browser = await launch(executablePath);
  const context = await browser.newContext({viewport: {width: 1400, height: 900}, offline: true});
  const tab = await context.newPage();
  const title = () => tab.evaluate(() => (document.body.innerText.match(/^.*\(pid \d+\), .*$/m) || [''])[0]);
  // Drivers of graphics cards may complain about themselves; the importer says what is wrong with a trace.
  tab.on('console', m => { if (/tried to end|still open|mismatch|invalid|fail/i.test(m.text())) faults.push(m.text()); });
  tab.on('pageerror', e => faults.push(String(e)));
  const file = path.join(scratch, 'profile.js');
  fs.writeFileSync(file, `speedscope.loadFileFromBase64('trace.json', '${fs.readFileSync(trace).toString('base64')}')`);
  const viewer = path.join(path.dirname(require.resolve('speedscope/package.json')), 'dist/release/index.html');
  await tab.goto(`file://${viewer}#localProfilePath=${file}`);
  await tab.waitForFunction(() => /\(pid \d+\)/.test(document.body.innerText), null, {timeout: 60000});
  const seen = new Set();
  for (let i = 0; i < wanted.length; ++i) {
    const now = await title();
    seen.add(now.replace(/ \(\d+\/\d+\)$/, ''));
    if (/ interface out/.test(now)) await tab.screenshot({path: `${folder}/trace-viewer.png`});
    await tab.keyboard.press('n');
    await tab.waitForTimeout(60);
  }
  for (const track of wanted) if (!seen.has(track)) faults.push(`no track '${track}' in the viewer`);
  if (wanted.length !== 1 + 3 + 3 * 8) faults.push(`${wanted.length} tracks, not one for the steps and three for the server and each device`);
  await browser.close();
  console.log(faults.slice(0, 20).join('\n') || `speedscope shows ${seen.size} tracks and finds no fault`);
  process.exit(faults.length ? 1 : 0);
})().catch(e => { console.error(e); process.exit(1); });

// The page's behaviour: figures from the data, charts by uPlot, and the timeline on a canvas of its own.
'use strict';
(() => {
const $ = id => document.getElementById(id);
const data = JSON.parse($('data').textContent);
const C = {down: '#0072b2', compute: '#009e73', up: '#e69f00', lost: '#d55e00', redone: '#cc79a7', ink: '#1c232b', sky: '#56b4e9'};
const runColors = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#000000', '#999999'];
const state = {ready: false, charts: {}, errors: []};
window.cleaveReport = state;

const num = (x, digits = 3) => x == null || !isFinite(x) ? '–' : x === 0 ? '0' : Math.abs(x) >= 1e5 || Math.abs(x) < 1e-3 ? x.toExponential(2) : String(+x.toPrecision(Math.max(digits, Math.ceil(Math.log10(Math.abs(x) + 1)))));
const scaled = (x, units, base) => { if (x == null || !isFinite(x)) return '–'; let i = 0; while (Math.abs(x) >= base && i + 1 < units.length) { x /= base; ++i; } return num(x) + ' ' + units[i]; };
const bytes = x => scaled(x, ['B', 'kB', 'MB', 'GB', 'TB', 'PB'], 1000);
const joules = x => scaled(x, ['J', 'kJ', 'MJ', 'GJ'], 1000);
const seconds = s => s == null ? '–' : s === 0 ? '0 s' : s < 1e-3 ? num(s * 1e6) + ' µs' : s < 1 ? num(s * 1e3) + ' ms' : s < 120 ? num(s) + ' s' : s < 7200 ? num(s / 60) + ' min' : num(s / 3600) + ' h';
const sum = (rows, key) => rows.reduce((a, r) => a + (r[key] || 0), 0);
const el = (tag, text, cls) => { const e = document.createElement(tag); if (text != null) e.textContent = text; if (cls) e.className = cls; return e; };
function table(head, rows) {
  const t = el('table'), h = t.createTHead().insertRow(), b = t.createTBody();
  head.forEach(([text, cls]) => h.append(el('th', text, cls)));
  for (const row of rows) { const r = b.insertRow(); row.forEach((cell, i) => { const td = el('td', cell instanceof Node ? null : cell, head[i][1]); if (cell instanceof Node) td.append(cell); r.append(td); }); }
  return t;
}

// ---- charts ----
const axis = {stroke: '#5a6672', grid: {stroke: '#e8ecf0', width: 1}, font: '11px system-ui, "DejaVu Sans"', ticks: {stroke: '#d8dde3', width: 1}};
function chart(id, x, series, options = {}) {
  const host = $(id);
  if (state.charts[id]) state.charts[id].destroy();
  host.textContent = '';
  const width = Math.max(240, Math.floor(host.clientWidth || 400));
  const u = new uPlot({
    width, height: options.height || 230, padding: [10, 12, 0, 0],
    scales: {x: {time: false, range: options.range}, y: {range: options.zero ? (u, a, b) => [0, b > 0 ? b * 1.08 : 1] : undefined}},
    axes: [{...axis, label: options.label, labelSize: options.label ? 18 : 0, size: 34, incrs: options.whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 100000] : undefined},
      {...axis, size: 62, values: (u, v) => v.map(x => num(x))}],
    cursor: {drag: {x: true, y: false}}, legend: {live: true},
    series: [{label: options.label || 'x', value: (u, v) => v == null ? '–' : num(v)}, ...series.map(s => ({label: s.label, stroke: s.color, width: s.width || 1.8, dash: s.dash, fill: s.fill, paths: s.paths, spanGaps: true, points: s.points || {show: x.length < 3}, value: (u, v) => v == null ? '–' : num(v, 4)}))],
  }, [x, ...series.map(s => s.y)], host);
  state.charts[id] = u;
  return u;
}
const bars = (align, size) => uPlot.paths.bars({size: [size, 40], align});
function deviceBars(id, devices, series, options = {}) {
  const n = series.length, size = n === 1 ? .7 : n === 2 ? .38 : .27;
  const aligns = n === 1 ? [0] : n === 2 ? [-1, 1] : [-1, 0, 1];
  // Three bars beside each other: the outer ones are moved by half a bar.
  const ids = devices.map(d => d.id), all = [];
  if (n < 3) series.forEach((s, i) => all.push({...s, x: 0, paths: bars(aligns[i], size)}));
  else series.forEach((s, i) => all.push({...s, paths: uPlot.paths.bars({size: [size, 40], align: 0, disp: {x0: {unit: 1, values: () => ids.map(v => v + (i - 1) * .28 - size / 2)}, size: {unit: 1, values: () => ids.map(() => size)}}})}));
  chart(id, ids, all.map(s => ({...s, fill: s.color + 'cc', points: {show: false}, width: .5})), {label: 'device', zero: true, whole: true, range: () => [-.6, ids[ids.length - 1] + .6], ...options});
}

// ---- sections ----
function summary(run) {
  const m = run.metrics, t = run.timeline, cards = [];
  const card = (label, value) => cards.push([label, value]);
  if (m.length) {
    const first = m[0], last = m[m.length - 1], time = run.totals.time_s, evaluated = m.filter(r => r.val_loss != null);
    card('steps', String(last.step));
    card('loss, first to last', num(first.loss, 4) + ' → ' + num(last.loss, 4));
    if (evaluated.length) card('validation loss, last', num(evaluated[evaluated.length - 1].val_loss, 4));
    card('emulated time', seconds(time));
    card('beside its lower bound', '× ' + num(time / run.totals.lower_bound_s));
    card('real time', seconds(run.totals.wall_s));
    card('tokens a second, emulated', num(run.totals.tokens / time));
    card('sent to devices', bytes(run.totals.bytes_down));
    card('sent by devices', bytes(run.totals.bytes_up));
    card('devices that worked, last step', String(last.devices));
    card('blocks lost / computed again', num(run.totals.lost) + ' / ' + num(run.totals.redone));
    card('recovery', seconds(run.totals.recovery_s));
    card('energy', joules(run.totals.energy_J));
  } else if (run.systems.length) {
    const s = run.systems.find(s => s.feasible) || run.systems[0];
    card('system', s.system); card('step', seconds(s.step_s)); card('beside its lower bound', '× ' + num(s.step_s / s.lower_bound_s));
    card('devices used', s.devices_used + ' of ' + s.devices); card('sent to devices', bytes(s.bytes_down)); card('sent by devices', bytes(s.bytes_up)); card('energy', joules(s.energy_J));
  }
  if (t) { card('devices in the fleet', String(t.devices.length)); card('server memory, predicted', t.memory.server_predicted ? bytes(t.memory.server_predicted) : '–'); }
  $('cards').replaceChildren(...cards.map(([l, v]) => { const c = el('div', null, 'card'); c.append(el('b', v), el('span', l)); return c; }));
}
function curves(run) {
  const m = run.metrics;
  $('s-curves').hidden = !m.length;
  if (!m.length) return;
  const x = m.map(r => r.step), y = key => m.map(r => r[key] ?? null);
  const loss = [{label: 'training', y: y('loss'), color: C.down}];
  if (m.some(r => r.val_loss != null)) loss.push({label: 'validation', y: y('val_loss'), color: C.lost, width: 2.4, points: {show: true, size: 7}});
  chart('c-loss', x, loss, {label: 'step'});
  chart('c-time', x, [{label: 'achieved', y: y('time_s'), color: C.down}, {label: 'bound', y: y('lower_bound_s'), color: '#000', dash: [5, 4]}], {label: 'step', zero: true});
  chart('c-bytes', x, [{label: 'down', y: m.map(r => r.bytes_down / 1e6), color: C.down}, {label: 'up', y: m.map(r => r.bytes_up / 1e6), color: C.up}], {label: 'step', zero: true});
  chart('c-energy', x, [{label: 'energy', y: y('energy_J'), color: C.compute}], {label: 'step', zero: true});
}
function churn(run) {
  const m = run.metrics, t = run.timeline, lost = sum(m, 'lost') + sum(m, 'redone') + sum(m, 'rejected'), changes = t ? t.changes : [];
  $('f-churn').hidden = !lost;
  $('churn').replaceChildren(el('p', !lost && !changes.length ? 'No device left, slowed down or lied; no block was lost.' :
    `${changes.length} changes of devices; ${run.totals.lost || 0} blocks lost, ${run.totals.redone || 0} computed again, ${run.totals.rejected || 0} rejected; losses added ${seconds(run.totals.recovery_s || 0)} of emulated time.`));
  if (lost) { const b = uPlot.paths.bars({size: [.8, 20]}); chart('c-churn', m.map(r => r.step), [{label: 'lost', y: m.map(r => r.lost), color: C.lost}, {label: 'computed again', y: m.map(r => r.redone), color: C.redone}, {label: 'rejected', y: m.map(r => r.rejected), color: '#000', dash: [3, 3]}], {label: 'step', zero: true}); }
  $('changes').replaceChildren();
  if (changes.length) {
    const shown = changes.slice(0, 40);
    $('changes').append(table([['at'], ['device'], ['what']], shown.map(c => [seconds(c.at), String(c.device), c.kind + (c.kind === 'slowed' ? ' to × ' + num(c.factor) : '')])));
    if (changes.length > shown.length || t.changes_left_out) $('changes').append(el('p', `and ${changes.length - shown.length + t.changes_left_out} more`, 'note'));
  }
}
function devices(run) {
  const t = run.timeline;
  $('s-devices').hidden = !t || !t.devices.length;
  if (!t || !t.devices.length) return;
  const d = t.devices, share = key => d.map(x => 100 * x[key] / Math.max(t.end_s, 1e-300));
  deviceBars('c-busy', d, [{label: 'downlink', y: share('down_s'), color: C.down}, {label: 'compute', y: share('compute_s'), color: C.compute}, {label: 'uplink', y: share('up_s'), color: C.up}]);
  deviceBars('c-devbytes', d, [{label: 'down', y: d.map(x => x.bytes_down / 1e6), color: C.down}, {label: 'up', y: d.map(x => x.bytes_up / 1e6), color: C.up}]);
  deviceBars('c-memory', d, [{label: 'peak', y: d.map(x => x.memory_peak / 1e6), color: C.compute}, {label: 'there', y: d.map(x => x.memory / 1e6), color: '#999999'}]);
  deviceBars('c-devenergy', d, [{label: 'energy', y: d.map(x => x.energy_J), color: C.compute}]);
  const full = Math.max(...d.map(x => x.memory_peak / x.memory));
  $('memory-note').textContent = `Fullest device: ${num(100 * full)} % of its memory.` + (t.memory.server_activations_peak ? ` Server: ${bytes(t.memory.server_predicted)} predicted; activations and gradients peaked at ${bytes(t.memory.server_activations_peak)}.` : '');
}
function operations(run) {
  const t = run.timeline, list = t ? t.operations.filter(o => o.time_s > 0).sort((a, b) => b.time_s - a.time_s) : [];
  $('s-operations').hidden = !list.length;
  if (!list.length) return;
  const most = list[0].time_s;
  $('operations').replaceChildren(table([['operation'], ['kind', 'hide-small'], ['a step', 'hide-small'], ['time'], ['bound'], ['ratio'], ['time | bound']], list.map(o => {
    const b = el('div', null, 'bars'), i = el('i'); i.style.width = 100 * o.time_s / most + '%'; b.append(i);
    if (o.bound_s > 0) { const u = el('u'); u.style.left = 100 * o.bound_s / most + '%'; b.append(u); } else i.style.background = '#999';
    return [o.type, o.kind, num(o.count), seconds(o.time_s), o.bound_s > 0 ? seconds(o.bound_s) : '–', o.bound_s > 0 ? '× ' + num(o.time_s / o.bound_s) : '–', b];
  })));
}
function systems(run) {
  $('s-systems').hidden = !run.systems.length;
  if (!run.systems.length) return;
  const most = Math.max(...run.systems.map(s => s.feasible ? s.step_s : 0));
  $('systems').replaceChildren(table([['system'], ['step'], ['bound'], ['devices'], ['down'], ['up', 'hide-small'], ['energy'], ['step | bound']], run.systems.map(s => {
    if (!s.feasible) return [s.system, 'not feasible', '', '', '', '', '', el('span', s.why)];
    const b = el('div', null, 'bars'), i = el('i'), u = el('u'); i.style.width = 100 * s.step_s / most + '%'; u.style.left = 100 * s.lower_bound_s / most + '%'; b.append(i, u);
    return [s.system, seconds(s.step_s), seconds(s.lower_bound_s), s.devices_used + ' / ' + s.devices, bytes(s.bytes_down), bytes(s.bytes_up), joules(s.energy_J), b];
  })));
}
function compare() {
  $('s-compare').hidden = data.runs.length < 2;
  if (data.runs.length < 2) return;
  $('compare').replaceChildren(table([['run'], ['steps'], ['last loss'], ['validation'], ['emulated'], ['× bound'], ['down'], ['up'], ['lost'], ['energy']], data.runs.map(r => {
    const m = r.metrics, last = m[m.length - 1] || {}, v = m.filter(x => x.val_loss != null).pop() || {};
    return [r.name, String(last.step ?? '–'), num(last.loss, 4), num(v.val_loss, 4), seconds(r.totals.time_s), num(r.totals.time_s / r.totals.lower_bound_s), bytes(r.totals.bytes_down), bytes(r.totals.bytes_up), num(r.totals.lost), joules(r.totals.energy_J)];
  })));
  const trained = data.runs.filter(r => r.metrics.length);
  if (!trained.length) return;
  const x = [...new Set(trained.flatMap(r => r.metrics.map(m => m.step)))].sort((a, b) => a - b), at = new Map(x.map((s, i) => [s, i]));
  chart('c-compare', x, trained.map((r, i) => { const y = Array(x.length).fill(null); r.metrics.forEach(m => { y[at.get(m.step)] = m.loss; }); return {label: r.name, y, color: runColors[i % 8], dash: i > 7 ? [4, 3] : undefined}; }), {label: 'step', height: 300});
}

// ---- timeline ----
const raw = text => { const s = atob(text), a = new Uint8Array(s.length); for (let i = 0; i < s.length; ++i) a[i] = s.charCodeAt(i); return a; };
const lanes = [['down', 'downlink'], ['compute', 'compute'], ['up', 'uplink'], ['lost', 'lost'], ['redone', 'computed again']];
const view = {from: 0, to: 1, top: 0, on: {down: true, compute: true, up: true, lost: true, redone: true}, rows: []};
state.view = view;
let T = null;
function loadTimeline(run) {
  T = run.timeline;
  $('s-timeline').hidden = !T;
  if (!T) return;
  if (!T.cellData) {
    T.cellData = raw(T.cells.data);
    const s = T.spans;
    s.t = Float64Array.from(new Uint32Array(raw(s.start).buffer), v => v * s.tick_s); s.d = new Float32Array(raw(s.length).buffer);
    s.row = new Uint16Array(raw(s.device).buffer); s.op = new Uint16Array(raw(s.name).buffer); s.flag = raw(s.flags);
    s.detail = T.parts.filter((p, i) => i % s.one_step_in === 0 && p.first === p.last);
  }
  const groups = [...new Set(T.devices.map(d => d.name))];
  $('group').replaceChildren(new Option('all', ''), ...groups.map(g => new Option(g, g)));
  $('legend').replaceChildren(...lanes.map(([key, label]) => {
    const b = el('button', null, 'key'), i = el('i'); i.style.background = C[key]; b.append(i, label); b.dataset.lane = key; b.setAttribute('aria-pressed', view.on[key]);
    b.onclick = () => { view.on[key] = !view.on[key]; b.setAttribute('aria-pressed', view.on[key]); draw(); };
    return b;
  }), (() => { const b = el('span', null, 'key'), i = el('i'); i.style.background = '#eef1f4'; b.append(i, 'idle'); return b; })());
  const s = T.spans, part = T.parts.length;
  $('timeline-note').textContent = `Each row is a device with its downlink, processor and uplink from top to bottom; the last row is the server: interface out, kernels, interface in. Drag to move, pinch or use ctrl and the wheel (or +, −) to zoom. ` +
    (s.one_step_in > 1 || s.one_device_in > 1 ? `Single blocks are kept for one part (step or evaluation) in ${s.one_step_in} and one device in ${s.one_device_in}; the rest is drawn as shares of ${seconds(T.cells.width_s)}.` : 'Every block is kept.');
  filterRows(); all();
}
function filterRows() {
  const g = $('group').value;
  view.rows = T.devices.map((d, i) => i).filter(i => !g || T.devices[i].name === g);
  view.rows.push(T.devices.length);
  view.top = 0;
}
const canvas = $('timeline'), left = () => canvas.clientWidth < 500 ? 52 : 96, axisHeight = 22;
function layout() {
  const n = view.rows.length, rowHeight = n <= 14 ? 27 : n <= 30 ? 18 : n <= 70 ? 9 : 5;
  return {n, rowHeight, height: Math.min(n * rowHeight, 620), width: canvas.clientWidth - left()};
}
function setView(from, to) {
  const end = T.end_s || 1, length = Math.min(end, Math.max(to - from, end * 1e-7));
  from = Math.max(0, Math.min(from, end - length));
  view.from = from; view.to = from + length; draw();
}
function all() { setView(0, T.end_s); }
const zoom = (factor, at = .5) => { const x = view.from + at * (view.to - view.from), l = (view.to - view.from) * factor; setView(x - at * l, x + (1 - at) * l); };
state.zoom = zoom;
function draw() {
  if (!T) return;
  const L = layout(), ratio = window.devicePixelRatio || 1, w = canvas.clientWidth, h = L.height + axisHeight, x0 = left();
  if (!w) return;
  canvas.style.height = h + 'px';
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) { canvas.width = Math.round(w * ratio); canvas.height = Math.round(h * ratio); }
  const g = canvas.getContext('2d'); g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.fillStyle = '#fff'; g.fillRect(0, 0, w, h);
  view.top = Math.max(0, Math.min(view.top, L.n * L.rowHeight - L.height));
  const px = L.width / (view.to - view.from), X = t => x0 + (t - view.from) * px;
  const firstRow = Math.floor(view.top / L.rowHeight), lastRow = Math.min(L.n - 1, Math.ceil((view.top + L.height) / L.rowHeight));
  const where = new Map();
  g.save(); g.beginPath(); g.rect(0, 0, w, L.height); g.clip();
  for (let r = firstRow; r <= lastRow; ++r) {
    const y = r * L.rowHeight - view.top; where.set(view.rows[r], y);
    g.fillStyle = '#eef1f4'; g.fillRect(x0, y, L.width, L.rowHeight - (L.rowHeight > 6 ? 2 : 1));
  }
  const body = L.rowHeight - (L.rowHeight > 6 ? 2 : 1), laneH = body / 3;
  const cells = T.cells, cw = cells.width_s, seen = T.parts.filter(p => p.start_s < view.to && p.start_s + p.time_s > view.from).length, fine = cw * px > 5 || seen <= 3, s = T.spans, server = T.devices.length;
  const detailed = fine ? s.detail.filter(p => p.start_s < view.to && p.start_s + p.time_s > view.from) : [];
  const from = Math.max(0, Math.floor(view.from / cw)), to = Math.min(cells.columns - 1, Math.floor(view.to / cw));
  // What is kept block by block is drawn so; everything else as shares of a cell.
  for (const [row, y] of where) {
    const own = row === server || row % s.one_device_in === 0;
    for (let c = from; c <= to; ++c) {
      if (own && detailed.some(p => p.start_s <= c * cw && p.start_s + p.time_s >= (c + 1) * cw)) continue;
      const base = (row * cells.columns + c) * cells.lanes, a = X(c * cw), b = Math.max(a + .7, X((c + 1) * cw)), data = T.cellData;
      const lost = row !== server && view.on.lost && data[base + 3], again = row !== server && view.on.redone && data[base + 4];
      for (let lane = 0; lane < 3; ++lane) {
        const v = data[base + lane] / 255, key = lanes[lane][0];
        if (!v || !view.on[key]) continue;
        g.fillStyle = C[key]; g.globalAlpha = .25 + .75 * v; const hh = laneH * Math.max(.15, v);
        g.fillRect(a, y + laneH * (lane + 1) - hh, b - a, hh);
      }
      g.globalAlpha = 1;
      if (lost) { g.fillStyle = C.lost; g.fillRect(a, y, Math.max(2, b - a), Math.max(1.5, body * .3)); }
      if (again) { g.fillStyle = C.redone; g.fillRect(a, y + body * .7, Math.max(2, b - a), Math.max(1.5, body * .3)); }
    }
  }
  g.globalAlpha = 1;
  let drawn = 0;
  if (detailed.length) for (let i = 0; i < s.count; ++i) {
    const t = s.t[i], e = t + s.d[i];
    if (e < view.from) continue;
    if (t > view.to) break;
    const y = where.get(s.row[i]);
    if (y == null) continue;
    const f = s.flag[i], resource = f & 7, lane = resource < 3 ? resource : resource === 3 ? 0 : resource === 5 ? 1 : 2;
    const key = f & 8 ? 'lost' : f & 16 ? 'redone' : lanes[lane][0];
    if (!view.on[key] || !view.on[lanes[lane][0]]) continue;
    g.fillStyle = C[key]; g.fillRect(X(t), y + laneH * lane, Math.max(.6, s.d[i] * px - .3), laneH - (laneH > 4 ? .8 : 0)); ++drawn;
  }
  state.spansDrawn = drawn;
  for (const c of T.changes) {
    const y = where.get(c.device);
    if (y == null || c.at < view.from || c.at > view.to) continue;
    g.fillStyle = c.kind === 'joined' ? '#000' : C.lost; g.fillRect(X(c.at) - 1, y, 2, body);
  }
  // Names over whatever reaches under them.
  g.fillStyle = '#fff'; g.fillRect(0, 0, x0, L.height);
  g.fillStyle = C.ink; g.font = '11px system-ui, "DejaVu Sans", sans-serif'; g.textBaseline = 'middle';
  let lastLabel = -99;
  for (const [row, y] of where) {
    if (y - lastLabel < 12) continue;
    lastLabel = y;
    const name = row === server ? 'server' : (x0 > 60 ? T.devices[row].name + ' ' : '') + row;
    g.fillText(name, 3, y + body / 2, x0 - 6);
  }
  g.restore();
  g.fillStyle = C.ink; g.textBaseline = 'top'; g.font = '11px system-ui, "DejaVu Sans", sans-serif'; g.strokeStyle = '#c3cad1';
  const span = view.to - view.from, rough = span / Math.max(2, L.width / 95), p10 = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map(k => k * p10).find(k => k >= rough);
  const places = Math.max(0, Math.ceil(-Math.log10(step))), unit = view.to < 1e-3 * 5 ? [1e6, 'µs'] : view.to < 5 ? [1e3, 'ms'] : [1, 's'];
  for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
    const x = X(t); g.beginPath(); g.moveTo(x, L.height); g.lineTo(x, L.height + 4); g.stroke();
    const text = (t * unit[0]).toFixed(Math.max(0, places - Math.round(Math.log10(unit[0])))) + ' ' + unit[1], tw = g.measureText(text).width;
    g.fillText(text, Math.min(Math.max(x - tw / 2, 2), w - tw - 2), L.height + 6);
  }
}
state.draw = draw;
function tip(ev) {
  if (!T) return;
  const L = layout(), box = canvas.getBoundingClientRect(), t = view.from + (ev.clientX - box.left - left()) / L.width * (view.to - view.from);
  const row = view.rows[Math.floor((ev.clientY - box.top + view.top) / L.rowHeight)];
  if (row == null || t < view.from) return;
  const part = T.parts.find(p => t >= p.start_s && t <= p.start_s + p.time_s), s = T.spans, at = [];
  for (let i = 0; i < s.count && s.t[i] <= t; ++i) if (s.row[i] === row && s.t[i] + s.d[i] >= t) at.push(['downlink', 'compute', 'uplink', 'interface out', 'interface in', 'kernel'][s.flag[i] & 7] + (T.names[s.op[i]] ? ' ' + T.names[s.op[i]] : '') + (s.flag[i] & 8 ? ' (lost)' : s.flag[i] & 16 ? ' (again)' : '') + ' ' + seconds(s.d[i]));
  $('timeline-tip').textContent = `${row === T.devices.length ? 'server' : 'device ' + row + ' (' + T.devices[row].name + ')'} at ${seconds(t)}` + (part ? `, ${part.evaluation ? 'evaluation after ' : ''}step ${part.last}` : '') + (at.length ? ': ' + at.join('; ') : '');
}
const fingers = new Map();
let hover = null;
canvas.addEventListener('pointerdown', e => { fingers.set(e.pointerId, [e.clientX, e.clientY]); canvas.setPointerCapture(e.pointerId); });
canvas.addEventListener('pointermove', e => {
  const before = fingers.get(e.pointerId);
  if (!before) { hover = e; requestAnimationFrame(() => { if (hover) tip(hover); hover = null; }); return; }
  const L = layout(), pair = [...fingers.values()];
  if (fingers.size === 2) {
    const gap = Math.abs(pair[0][0] - pair[1][0]); fingers.set(e.pointerId, [e.clientX, e.clientY]);
    const now = [...fingers.values()], wider = Math.abs(now[0][0] - now[1][0]);
    if (gap > 5 && wider > 5) zoom(gap / wider, ((now[0][0] + now[1][0]) / 2 - canvas.getBoundingClientRect().left - left()) / L.width);
    return;
  }
  const move = (e.clientX - before[0]) / L.width * (view.to - view.from);
  view.top -= e.clientY - before[1]; fingers.set(e.pointerId, [e.clientX, e.clientY]); setView(view.from - move, view.to - move);
});
for (const kind of ['pointerup', 'pointercancel']) canvas.addEventListener(kind, e => fingers.delete(e.pointerId));
canvas.addEventListener('wheel', e => {
  if (!e.ctrlKey && !e.shiftKey) return;
  e.preventDefault();
  if (e.shiftKey) { view.top += e.deltaY; draw(); return; }
  zoom(Math.exp(e.deltaY / 300), (e.clientX - canvas.getBoundingClientRect().left - left()) / layout().width);
}, {passive: false});
canvas.addEventListener('dblclick', e => zoom(.4, (e.clientX - canvas.getBoundingClientRect().left - left()) / layout().width));
$('zoom-in').onclick = () => zoom(.5); $('zoom-out').onclick = () => zoom(2); $('zoom-all').onclick = all;
$('pan-left').onclick = () => { const l = (view.to - view.from) * .4; setView(view.from - l, view.to - l); };
$('pan-right').onclick = () => { const l = (view.to - view.from) * .4; setView(view.from + l, view.to + l); };
$('zoom-step').onclick = () => { const kept = T.spans.detail.filter(p => !p.evaluation), mid = (view.from + view.to) / 2, p = kept.find(p => p.start_s + p.time_s >= mid) || kept[kept.length - 1] || T.parts[0]; if (p) setView(p.start_s, p.start_s + p.time_s); };
$('group').onchange = () => { filterRows(); draw(); };

function show(index) {
  const run = data.runs[index];
  $('title').textContent = run.name;
  document.title = 'cleave: ' + run.name;
  $('subtitle').textContent = run.about;
  summary(run); systems(run); curves(run); loadTimeline(run); devices(run); operations(run); churn(run);
  $('s-input').hidden = !run.input; $('input').textContent = run.input;
}
window.addEventListener('error', e => state.errors.push(String(e.message)));
$('picker').hidden = data.runs.length < 2;
data.runs.forEach((r, i) => $('run').append(new Option(r.name, i)));
$('run').onchange = () => show(+$('run').value);
compare(); show(0);
let timer = 0, width = window.innerWidth;
window.addEventListener('resize', () => { if (window.innerWidth === width) return; width = window.innerWidth; clearTimeout(timer); timer = setTimeout(() => { for (const [id, u] of Object.entries(state.charts)) { const w = $(id).clientWidth; if (w) u.setSize({width: w, height: u.height}); } draw(); }, 120); });
window.addEventListener('beforeprint', () => document.querySelectorAll('details').forEach(d => { d.open = true; }));
state.ready = true;
})();

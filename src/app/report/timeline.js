// The timeline: devices x time on a canvas. Coarse cells hold everything; where single blocks were kept and there is
// room for them, they are drawn in the cells' place.
const LANES = [['down', 'downlink'], ['compute', 'compute'], ['up', 'uplink'], ['lost', 'lost'], ['redone', 'computed again']];
// Of a step in stages: what devices do has colours of its own, and the place within a row says by which resource.
const WORK = [['chunks', 'chunks of sequences'], ['weights', 'weights'], ['owners', 'gradient owners']];
const RESOURCES = ['downlink', 'compute', 'uplink', 'interface out', 'interface in', 'kernel'];
const SINGLE_ROWS = 64, MAX_HEIGHT = 620, AXIS_HEIGHT = 24;
const view = {from: 0, to: 1, top: 0, on: {down: true, compute: true, up: true, lost: true, redone: true, chunks: true, weights: true, owners: true}, rows: []};
const canvas = $('timeline');
let T = null;  // the timeline of the run that is shown

const raw = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));

function decode(t) {
  const s = t.spans, cells = t.cells;
  t.data = raw(cells.data);
  s.t = Float64Array.from(new Uint32Array(raw(s.start).buffer), v => v * s.tick_s);
  s.d = new Float32Array(raw(s.length).buffer);
  s.dev = new Uint32Array(raw(s.device).buffer);
  s.op = new Uint16Array(raw(s.name).buffer);
  s.flag = raw(s.flags);
  s.detail = t.parts.filter(p => p.number % s.one_step_in === 0 && p.first === p.last);
  t.deviceRows = Math.ceil(t.fleet_size / cells.devices_per_row);
  t.rowSize = cells.columns * cells.lanes;
  t.staged = cells.lanes > LANES.length;
  t.profile = device => (t.devices[Math.floor(device / t.one_device_in)] || {name: ''}).name;
  t.away = awayTimes(t);
}
// device -> [[from, to], ...] in which it was gone, or hung.
function awayTimes(t) {
  const away = new Map();
  for (const c of t.changes) {
    const list = away.get(c.device) || away.set(c.device, []).get(c.device), open = list.length && list[list.length - 1][1] === Infinity;
    if ((c.kind === 'left' || c.kind === 'hung') && !open) list.push([c.at, Infinity]);
    if (c.kind === 'joined' && open) list[list.length - 1][1] = c.at;
  }
  return away;
}

// ---- rows ----
const serverRow = () => ({label: 'server', server: true, device: T.fleet_size, data: T.data, base: T.deviceRows * T.rowSize});
function deviceRow(r) {
  const k = T.cells.devices_per_row, device = r * k, name = T.profile(device);
  return {label: k > 1 ? `${name} ${device}–${Math.min(T.fleet_size, device + k) - 1}` : `${name} ${device}`, short: String(device),
    device, name, data: T.data, base: r * T.rowSize};
}
// One row for all devices of a profile: the mean of theirs.
function profileRow(name) {
  const mean = new Float32Array(T.rowSize);
  let count = 0;
  for (let r = 0; r < T.deviceRows; ++r) {
    if (T.profile(r * T.cells.devices_per_row) !== name) continue;
    ++count;
    for (let i = 0, base = r * T.rowSize; i < T.rowSize; ++i) mean[i] += T.data[base + i];
  }
  for (let i = 0; i < T.rowSize; ++i) mean[i] /= count || 1;
  const group = T.groups.find(g => g.name === name);
  return {label: `${name} (${group ? group.count : count})`, short: name, device: -1, name, data: mean, base: 0};
}
function makeRows() {
  const chosen = $('group').value, rows = [];
  if ($('rows').value === 'profile') {
    for (const g of T.groups) if (!chosen || g.name === chosen) rows.push(profileRow(g.name));
  } else {
    for (let r = 0; r < T.deviceRows; ++r) { const row = deviceRow(r); if (!chosen || row.name === chosen) rows.push(row); }
  }
  rows.push(serverRow());
  view.rows = rows;
  view.top = 0;
  $('scroll').hidden = layout().full <= layout().height;
}

function loadTimeline(run) {
  T = run.timeline;
  if (!show('s-timeline', T)) return;
  if (!T.data) decode(T);
  options($('group'), [['', 'all'], ...T.groups.map(g => [g.name, g.name])]);
  options($('rows'), [['device', T.cells.devices_per_row > 1 ? `${T.cells.devices_per_row} devices a row` : 'one a device'], ['profile', 'one a profile']],
    T.deviceRows > SINGLE_ROWS ? 'profile' : 'device');
  const swatch = (color, label) => { const i = el('i'); i.style.background = color; return [i, label]; };
  $('legend').replaceChildren(...[...LANES, ...(T.staged ? WORK : [])].map(([key, label], i) => {
    const b = el('button', null, 'key', swatch(COLORS[key], label + (T.staged && i < 3 ? ', server' : '')));
    b.type = 'button'; b.dataset.lane = key; b.setAttribute('aria-pressed', view.on[key]);
    b.onclick = () => { view.on[key] = !view.on[key]; b.setAttribute('aria-pressed', view.on[key]); draw(); };
    return b;
  }), el('span', null, 'key still', swatch('#eef1f4', 'idle')), ...(T.away.size ? [el('span', null, 'key still', swatch('repeating-linear-gradient(45deg,#8a929a 0 2px,#fff 2px 4px)', 'away'))] : []));
  $('timeline-note').textContent = timelineNote();
  makeRows();
  setView(0, T.end_s);
}
function timelineNote() {
  const s = T.spans, k = T.cells.devices_per_row, clock = {
    virtual: 'Times are emulated.',
    wall: 'Times are emulated; real time followed them.',
    off: 'Times are real, on unthrottled processors; the server’s rows are packing, kernels and checking. How the time of a message divides between its two ways is estimated from their bytes.',
  }[T.clock] || '';
  const kept = s.one_step_in > 1 || s.one_device_in > 1
    ? `Single blocks are kept for ` + [s.one_step_in > 1 ? `one step or evaluation in ${s.one_step_in}` : '', s.one_device_in > 1 ? `one device in ${s.one_device_in}` : ''].filter(x => x).join(' and ') + `; the rest is drawn as shares of ${seconds(T.cells.width_s)}.`
    : 'Every block is kept.';
  return `A row shows downlink, processor and uplink from top to bottom; the server’s, interface out, kernels and interface in.` +
    (T.staged ? ' Colours of devices say what is done: chunks pass through stages, weights come, owners sum gradients.' : '') + ` ${clock} ${kept}` +
    (k > 1 ? ` ${k} neighbouring devices share a row.` : '');
}

// ---- the view ----
const left = () => canvas.clientWidth < 500 ? 58 : 118;
function layout() {
  const n = view.rows.length, rowHeight = n <= 14 ? 28 : n <= 30 ? 18 : n <= 70 ? 9 : 6, full = n * rowHeight;
  return {n, rowHeight, full, height: Math.min(full, MAX_HEIGHT), width: canvas.clientWidth - left() - 6};
}
function setView(from, to) {
  const end = T.end_s || 1, length = Math.min(end, Math.max(to - from, end * 1e-7));
  from = Math.max(0, Math.min(from, end - length));
  view.from = from; view.to = from + length;
  draw();
}
function zoom(factor, at = .5) {
  const x = view.from + at * (view.to - view.from), length = (view.to - view.from) * factor;
  setView(x - at * length, x + (1 - at) * length);
}
function pan(share) {
  const by = (view.to - view.from) * share;
  setView(view.from + by, view.to + by);
}
function scrollRows(pixels) { view.top += pixels; draw(); }
// The nearest step of which every block is kept.
function oneStep() {
  const kept = T.spans.detail.filter(p => !p.evaluation), middle = (view.from + view.to) / 2;
  const p = kept.find(p => p.start_s + p.time_s >= middle) || kept[kept.length - 1] || T.parts[0];
  if (p) setView(p.start_s, p.start_s + p.time_s);
}

// ---- drawing ----
function draw() {
  if (!T || !canvas.clientWidth) return;
  const L = layout(), ratio = window.devicePixelRatio || 1, w = canvas.clientWidth, h = L.height + AXIS_HEIGHT, x0 = left();
  canvas.style.height = h + 'px';
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
    canvas.width = Math.round(w * ratio); canvas.height = Math.round(h * ratio);
  }
  const g = canvas.getContext('2d');
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.fillStyle = '#fff'; g.fillRect(0, 0, w, h);
  view.top = Math.max(0, Math.min(view.top, L.full - L.height));
  const gap = L.rowHeight > 8 ? 3 : 1, scale = {px: L.width / (view.to - view.from), body: L.rowHeight - gap, lane: (L.rowHeight - gap) / 3};
  scale.x = t => x0 + (t - view.from) * scale.px;
  const seen = [], first = Math.floor(view.top / L.rowHeight), last = Math.min(L.n - 1, Math.ceil((view.top + L.height) / L.rowHeight));
  for (let r = first; r <= last; ++r) seen.push([view.rows[r], r * L.rowHeight - view.top]);
  g.save();
  g.beginPath(); g.rect(x0, 0, L.width, L.height); g.clip();
  for (const [, y] of seen) { g.fillStyle = '#eef1f4'; g.fillRect(x0, y, L.width, scale.body); }
  const inView = T.parts.filter(p => p.start_s < view.to && p.end_s > view.from);
  // Single blocks beside shares would look busier than they are: they are drawn where all of them are there, or close by.
  const close = inView.length <= 3 || (T.spans.one_step_in === 1 && T.cells.width_s * scale.px > 5);
  const fine = T.cells.devices_per_row === 1 && close;
  const detailed = fine ? T.spans.detail.filter(p => p.start_s < view.to && p.end_s > view.from) : [];
  drawCells(g, seen, scale, detailed);
  state.spansDrawn = detailed.length ? drawSpans(g, seen, scale) : 0;
  drawChanges(g, seen, scale);
  g.restore();
  drawNames(g, seen, scale, L);
  drawAxis(g, L, scale, w);
}
// Shares of what a lane was taken for, [color, share], of a step in stages.
function workParts(data, at, lane) {
  const more = at + LANES.length, weights = lane === 0 ? data[more] : 0, owners = data[more + 1 + lane], all = data[at + lane];
  const parts = {chunks: Math.max(0, all - weights - owners), weights, owners};
  return WORK.filter(([key]) => view.on[key] && parts[key] > 0).map(([key]) => [COLORS[key], Math.min(1, parts[key] / all)]);
}
function drawCells(g, seen, scale, detailed) {
  const cells = T.cells, width = cells.width_s, s = T.spans;
  const from = Math.max(0, Math.floor(view.from / width)), to = Math.min(cells.columns - 1, Math.floor(view.to / width));
  const whole = c => detailed.some(p => p.start_s <= c * width && p.end_s >= Math.min(T.end_s, (c + 1) * width) * (1 - 1e-12));
  const skip = [];
  for (let c = from; c <= to; ++c) skip[c] = detailed.length > 0 && whole(c);
  for (const [row, y] of seen) {
    const kept = row.server || (row.device >= 0 && row.device % s.one_device_in === 0);
    for (let c = from; c <= to; ++c) {
      const single = kept && skip[c];
      if (single && !(row.server && !s.server_links)) continue;
      const at = row.base + c * cells.lanes, a = scale.x(c * width), b = Math.max(a + .7, scale.x((c + 1) * width));
      for (let lane = 0; lane < 3; ++lane) {
        const share = row.data[at + lane] / 255;
        if (!share || !view.on[LANES[lane][0]] || (single && lane === 1)) continue;
        let bottom = y + scale.lane * (lane + 1);
        const height = scale.lane * Math.max(.15, share);
        g.globalAlpha = .35 + .65 * share;
        for (const [color, part] of row.server || !T.staged ? [[COLORS[LANES[lane][0]], 1]] : workParts(row.data, at, lane)) {
          g.fillStyle = color;
          g.fillRect(a, bottom - height * part, b - a, height * part);
          bottom -= height * part;
        }
      }
      g.globalAlpha = 1;
      if (row.server) continue;
      const mark = Math.max(1.5, scale.body * .3);
      if (view.on.lost && row.data[at + 3]) { g.fillStyle = COLORS.lost; g.fillRect(a, y, Math.max(2, b - a), mark); }
      if (view.on.redone && row.data[at + 4]) { g.fillStyle = COLORS.redone; g.fillRect(a, y + scale.body - mark, Math.max(2, b - a), mark); }
    }
  }
}
const laneOf = resource => resource < 3 ? resource : resource === 3 ? 0 : resource === 5 ? 1 : 2;
function drawSpans(g, seen, scale) {
  const s = T.spans, where = new Map(seen.map(([row, y]) => [row.device, y]));
  let drawn = 0;
  for (let i = 0; i < s.count && s.t[i] <= view.to; ++i) {
    if (s.t[i] + s.d[i] < view.from) continue;
    const y = where.get(s.dev[i]);
    if (y == null) continue;
    const flag = s.flag[i], lane = laneOf(flag & 7), work = flag >> 5, own = work ? WORK[work - 1][0] : LANES[lane][0];
    const key = flag & 8 ? 'lost' : flag & 16 ? 'redone' : own;
    if (!view.on[key] || !view.on[own] || !view.on[LANES[lane][0]]) continue;
    g.fillStyle = COLORS[key];
    g.fillRect(scale.x(s.t[i]), y + scale.lane * lane, Math.max(.6, s.d[i] * scale.px - .3), scale.lane - (scale.lane > 4 ? .8 : 0));
    ++drawn;
  }
  return drawn;
}
function drawChanges(g, seen, scale) {
  for (const [row, y] of seen) {
    for (const [from, to] of T.away.get(row.device) || []) {
      if (from > view.to || to < view.from) continue;
      const a = Math.max(scale.x(from), left()), b = Math.min(scale.x(Math.min(to, T.end_s)), left() + layout().width);
      g.save(); g.beginPath(); g.rect(a, y, b - a, scale.body); g.clip();
      g.strokeStyle = COLORS.away; g.lineWidth = 1;
      for (let x = a - scale.body; x < b; x += 5) { g.beginPath(); g.moveTo(x, y + scale.body); g.lineTo(x + scale.body, y); g.stroke(); }
      g.restore();
    }
  }
  const where = new Map(seen.map(([row, y]) => [row.device, y]));
  for (const c of T.changes) {
    const y = where.get(c.device);
    if (y == null || c.at < view.from || c.at > view.to) continue;
    g.fillStyle = c.kind === 'joined' ? '#000' : COLORS.lost;
    g.fillRect(scale.x(c.at) - 1, y, 2, scale.body);
  }
}
function drawNames(g, seen, scale, L) {
  g.save();
  g.beginPath(); g.rect(0, 0, left(), L.height); g.clip();
  g.fillStyle = COLORS.ink; g.font = AXIS.font; g.textBaseline = 'middle';
  let before = -99;
  for (const [row, y] of seen) {
    if (y - before < 12) continue;
    before = y;
    g.fillText(left() < 100 && row.short ? row.short : row.label, 4, y + scale.body / 2, left() - 8);
  }
  g.restore();
}
function drawAxis(g, L, scale, width) {
  const span = view.to - view.from, [factor, unit] = unitFor('time', view.to), rough = span / Math.max(2, L.width / 95) / factor;
  const power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map(k => k * power).find(k => k >= rough) * factor;
  const places = Math.max(0, Math.ceil(-Math.log10(step / factor) - 1e-9));
  g.fillStyle = COLORS.ink; g.strokeStyle = '#aab3bc'; g.font = AXIS.font; g.textBaseline = 'top';
  for (let i = Math.ceil(view.from / step - 1e-9); i * step <= view.to + span * 1e-9; ++i) {
    const x = scale.x(i * step), text = (i * step / factor).toFixed(places) + ' ' + unit, tw = g.measureText(text).width;
    g.beginPath(); g.moveTo(x, L.height); g.lineTo(x, L.height + 4); g.stroke();
    g.fillText(text, Math.min(Math.max(x - tw / 2, 2), width - tw - 2), L.height + 7);
  }
}

// ---- what is under the pointer ----
function tip(event) {
  if (!T) return;
  const L = layout(), box = canvas.getBoundingClientRect();
  const t = view.from + (event.clientX - box.left - left()) / L.width * (view.to - view.from);
  const row = view.rows[Math.floor((event.clientY - box.top + view.top) / L.rowHeight)];
  if (!row || t < view.from || t > view.to) return;
  const part = T.parts.find(p => t >= p.start_s && t <= p.end_s), s = T.spans, at = [];
  for (let i = 0; i < s.count && s.t[i] <= t; ++i) {
    if (s.dev[i] !== row.device || s.t[i] + s.d[i] < t) continue;
    const op = T.names[s.op[i]], fate = s.flag[i] & 8 ? ' (lost)' : s.flag[i] & 16 ? ' (again)' : '';
    at.push(RESOURCES[s.flag[i] & 7] + (op ? ' ' + op : '') + fate + ' ' + seconds(s.d[i]));
  }
  $('timeline-tip').textContent = `${row.label}, ${seconds(t)}` + (part ? `, ${part.evaluation ? 'evaluation after ' : ''}step ${part.last}` : '') +
    (at.length ? ': ' + at.join('; ') : '');
}

// ---- mouse, fingers, keys ----
const fingers = new Map();
const place = x => (x - canvas.getBoundingClientRect().left - left()) / layout().width;
canvas.addEventListener('pointerdown', e => { fingers.set(e.pointerId, [e.clientX, e.clientY]); canvas.setPointerCapture(e.pointerId); tip(e); });
canvas.addEventListener('pointermove', e => {
  const before = fingers.get(e.pointerId);
  if (!before) return tip(e);
  const pair = [...fingers.values()];
  fingers.set(e.pointerId, [e.clientX, e.clientY]);
  if (fingers.size === 2) {
    const now = [...fingers.values()], gap = Math.abs(pair[0][0] - pair[1][0]), wider = Math.abs(now[0][0] - now[1][0]);
    if (gap > 5 && wider > 5) zoom(gap / wider, place((now[0][0] + now[1][0]) / 2));
    return;
  }
  view.top -= e.clientY - before[1];
  pan(-(e.clientX - before[0]) / layout().width);
});
for (const kind of ['pointerup', 'pointercancel']) canvas.addEventListener(kind, e => fingers.delete(e.pointerId));
canvas.addEventListener('wheel', e => {
  if (!e.ctrlKey && !e.shiftKey) return;
  e.preventDefault();
  if (e.shiftKey) return scrollRows(e.deltaY || e.deltaX);
  zoom(Math.exp(e.deltaY / 300), place(e.clientX));
}, {passive: false});
canvas.addEventListener('dblclick', e => zoom(.4, place(e.clientX)));
canvas.addEventListener('keydown', e => {
  const act = {'+': () => zoom(.5), '-': () => zoom(2), ArrowLeft: () => pan(-.2), ArrowRight: () => pan(.2),
    ArrowUp: () => scrollRows(-60), ArrowDown: () => scrollRows(60), Home: () => setView(0, T.end_s)}[e.key];
  if (act) { e.preventDefault(); act(); }
});
$('zoom-in').onclick = () => zoom(.5);
$('zoom-out').onclick = () => zoom(2);
$('zoom-all').onclick = () => setView(0, T.end_s);
$('zoom-step').onclick = oneStep;
$('pan-left').onclick = () => pan(-.4);
$('pan-right').onclick = () => pan(.4);
$('scroll-up').onclick = () => scrollRows(-MAX_HEIGHT / 2);
$('scroll-down').onclick = () => scrollRows(MAX_HEIGHT / 2);
$('group').onchange = $('rows').onchange = () => { makeRows(); draw(); };

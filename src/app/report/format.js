// Numbers with units, and small pieces of the page.
const data = JSON.parse(document.getElementById('data').textContent);
const state = {ready: false, charts: {}, errors: []};
window.cleaveReport = state;  // for tests
const $ = id => document.getElementById(id);
const COLORS = {down: '#0072b2', compute: '#009e73', up: '#e69f00', lost: '#d55e00', redone: '#cc79a7', away: '#8a929a', ink: '#1c232b', chunks: '#56b4e9', weights: '#f0e442', owners: '#3b4a5a'};
const RUN_COLORS = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#000000', '#8a929a'];
const DASHES = [undefined, [7, 3], [2, 3], [9, 3, 2, 3]];

function num(x, digits = 3) {
  if (x == null || !isFinite(x)) return '–';
  if (x === 0) return '0';
  const size = Math.abs(x);
  if (size >= 1e6 || size < 1e-4) return x.toExponential(2);
  return String(+x.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1)))));
}

// Units of a quantity with the factor that each stands for, smallest first.
const UNITS = {
  time: [[1e-6, 'µs'], [1e-3, 'ms'], [1, 's'], [60, 'min'], [3600, 'h'], [86400, 'd']],
  bytes: [[1, 'B'], [1e3, 'kB'], [1e6, 'MB'], [1e9, 'GB'], [1e12, 'TB'], [1e15, 'PB']],
  energy: [[1e-3, 'mJ'], [1, 'J'], [1e3, 'kJ'], [1e6, 'MJ'], [1e9, 'GJ']],
  share: [[.01, '%']],
  none: [[1, '']],
};
// The unit in which `most` is a number of one to four digits: [factor, name].
function unitFor(kind, most) {
  const units = UNITS[kind || 'none'];
  let best = units[0];
  for (const unit of units) {
    const least = unit[1] === 'min' ? 120 : unit[1] === 'h' ? 7200 : unit[1] === 'd' ? 172800 : unit[0];
    if (Math.abs(most) >= least) best = unit;
  }
  return best;
}
function quantity(kind, x) {
  if (x == null || !isFinite(x)) return '–';
  const [factor, name] = unitFor(kind, x);
  return num(x / factor) + (name ? ' ' + name : '');
}
const seconds = x => quantity('time', x), bytes = x => quantity('bytes', x), joules = x => quantity('energy', x);
const percent = x => x == null || !isFinite(x) ? '–' : num(100 * x) + ' %';
const times = x => x == null || !isFinite(x) ? '–' : '× ' + num(x);
const plural = (n, word) => n + ' ' + word + (n === 1 ? '' : 's');
// What a field of simulate's or a sweep's rows measures, by its name.
const kindOf = key => /_s$/.test(key) ? 'time' : /bytes|memory/.test(key) ? 'bytes' : /energy/.test(key) ? 'energy' : 'none';

const sum = (rows, key) => rows.reduce((total, row) => total + (row[key] || 0), 0);
const largest = values => values.reduce((a, b) => b != null && isFinite(b) && b > a ? b : a, 0);

function el(tag, text, cls, children = []) {
  const e = document.createElement(tag);
  if (text != null) e.textContent = text;
  if (cls) e.className = cls;
  e.append(...children);
  return e;
}
// head: [[text, class], ...]; a cell is a text or a node.
function table(head, rows) {
  const t = el('table'), h = t.createTHead().insertRow(), body = t.createTBody();
  head.forEach(([text, cls]) => { const th = el('th', text, cls); th.scope = 'col'; h.append(th); });
  for (const row of rows) {
    const r = body.insertRow();
    row.forEach((cell, i) => r.append(cell instanceof Node ? el('td', null, head[i][1], [cell]) : el('td', cell, head[i][1])));
  }
  return t;
}
// A bar of `value` out of `most`, with marks at `bound` and, in grey, at `floor`.
function bar(value, bound, most, color, floor) {
  const place = x => Math.max(0, Math.min(100, 100 * x / most)) + '%';
  const i = el('i'), u = el('u');
  i.style.width = place(value);
  if (color) i.style.background = color;
  u.style.left = place(bound);
  const marks = bound > 0 ? [i, u] : [i];
  if (floor > 0) { const f = el('u', null, 'floor'); f.style.left = place(floor); marks.push(f); }
  return el('div', null, 'bar', marks);
}
function options(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => new Option(text, value, false, value === chosen)));
}
const show = (id, there) => { $(id).hidden = !there; return there; };

// Charts by uPlot: lines over a number, bars beside each other, and devices.
const AXIS = {stroke: '#4c5864', grid: {stroke: '#e8ecf0', width: 1}, font: '11px system-ui, "DejaVu Sans", sans-serif',
  ticks: {stroke: '#d8dde3', width: 1, size: 5}};
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];

function decades(u, axis, low, high) {
  const all = [];
  for (let p = Math.ceil(Math.log10(low) - 1e-9); 10 ** p <= high; ++p) all.push(10 ** p);
  return all;
}

// Draws into the figure of `id`. series: {label, y, color, dash, width, fill, paths, points}; options: kind (of y),
// label (of x), zero, whole, log, range, height, names (of x's whole numbers). The caption gets y's unit.
function chart(id, x, series, options = {}) {
  const host = $(id), caption = host.parentNode.querySelector('figcaption');
  if (state.charts[id]) state.charts[id].destroy();
  host.textContent = '';
  const most = largest(series.flatMap(s => s.y)), [factor, unit] = unitFor(options.kind, most);
  const values = options.kind && factor !== 1 ? series.map(s => s.y.map(v => v == null ? null : v / factor)) : series.map(s => s.y);
  if (caption) {
    caption.dataset.title = caption.dataset.title || caption.textContent;
    caption.textContent = caption.dataset.title + (unit ? ` (${unit})` : '');
  }
  const width = Math.max(220, Math.floor(host.clientWidth || 400)), whole = options.whole || x.every(Number.isInteger);
  // Names that do not fit beside each other lean.
  const longest = options.names ? 14 + 7 * largest(options.names.map(n => n.length)) : 50, lean = options.names && longest > 40 && longest * x.length > width - 70;
  const atX = v => options.names ? (Number.isInteger(v) ? options.names[v] ?? '' : '') : num(v, 4);
  const u = new uPlot({
    width, height: (options.height || 210) + (lean ? 46 : 0), padding: [10, 14, 0, 0],
    scales: {
      x: {time: false, range: options.range},
      y: options.log ? {distr: 3} : {range: options.zero ? (u, low, high) => [0, high > 0 ? high * 1.08 : 1] : undefined},
    },
    axes: [
      {...AXIS, label: options.label, labelSize: 16, labelGap: 2, size: lean ? 76 : 30, labelFont: AXIS.font,
        values: (u, v) => v.map(atX), incrs: whole ? WHOLE : undefined, space: lean ? 16 : longest, rotate: lean ? -45 : 0},
      {...AXIS, size: 56, values: (u, v) => v.map(a => num(a)), ...(options.log ? {splits: decades, filter: (u, v) => v} : {})},
    ],
    cursor: {drag: {x: true, y: false}, points: {size: 7}},
    legend: {live: true},
    series: [
      {label: options.label || 'x', value: (u, v) => v == null ? '' : (options.label ? options.label + ' ' : '') + atX(v)},
      ...series.map(s => ({label: s.label, stroke: s.color, width: s.width || 1.8, dash: s.dash, fill: s.fill, paths: s.paths,
        spanGaps: true, points: s.points || {show: x.length < 3}, value: (u, v) => v == null ? '' : num(v, 4)})),
    ],
  }, [x, ...values], host);
  state.charts[id] = u;
  return u;
}

// Bars of several series beside each other at 0, 1, 2, ...; names are theirs.
function barChart(id, names, series, options = {}) {
  const n = series.length, size = .82 / n, x = names.map((_, i) => i);
  chart(id, x, series.map((s, i) => ({...s, fill: s.color + 'd0', width: .5, points: {show: false},
    paths: uPlot.paths.bars({size: [size, 60], align: 0, disp: {
      x0: {unit: 1, values: () => x.map(v => v - .41 + i * size)}, size: {unit: 1, values: () => x.map(() => size)},
    }})})), {zero: !options.log, whole: true, names, range: () => [-.6, names.length - .4], ...options});
}

// Every device as a bar; in a fleet too large for that, each series sorted by itself over the share of the devices.
const FEW_DEVICES = 48;
function deviceChart(id, devices, series, options = {}) {
  if (devices.length <= FEW_DEVICES) return barChart(id, devices.map(d => String(d.id)), series, {label: 'device', ...options});
  const x = devices.map((_, i) => 100 * i / (devices.length - 1));
  chart(id, x, series.map((s, i) => ({...s, y: [...s.y].sort((a, b) => b - a), dash: DASHES[i], width: 2})),
    {label: '% of the devices, largest first', zero: !options.log, ...options});
}

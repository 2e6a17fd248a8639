// Beside each other: systems of a simulation, runs, and the points of a sweep.

function systems(run) {
  const all = run.systems, good = all.filter(s => s.feasible);
  if (!show('s-systems', all.length)) return;
  const most = largest(good.map(s => s.step_s)), least = Math.min(...good.map(s => s.step_s)), base = good.find(s => s.system === 'cleave') || good[0];
  // Systems may differ by orders of magnitude: then bars grow by the logarithm, from a tenth of the shortest.
  const log = most / least > 30, length = x => log ? Math.log10(x / (least / 10)) : x;
  $('systems-note').textContent = 'Time of one training step; the black mark is its lower bound, the grey one the floor of any layout with all state on the server' + (log ? '. The lengths are logarithmic.' : '.');
  $('systems-bars').replaceChildren(...all.map(s => el('div', null, 'line', s.feasible
    ? [el('span', s.system, 'name'), bar(length(s.step_s), s.lower_bound_s > 0 ? length(s.lower_bound_s) : 0, length(most), s === base ? COLORS.down : '#8a929a', s.floor_s > 0 ? length(s.floor_s) : 0),
      el('span', seconds(s.step_s) + (s === base || all.length < 2 ? '' : `  (${times(s.step_s / base.step_s)})`), 'value')]
    : [el('span', s.system, 'name'), el('span', 'not feasible: ' + s.why, 'why')])));
  const head = [['system'], ['step'], ['bound'], ['floor'], ['devices used'], ['most computing'], ['down'], ['up'], ['most down a device'], ['most memory of a device'], ['recovery'], ['energy'], ['planning']];
  $('systems').replaceChildren(table(head, good.map(s => [s.system, seconds(s.step_s), seconds(s.lower_bound_s), s.floor_s > 0 ? seconds(s.floor_s) : '–', s.devices_used + ' / ' + s.devices, seconds(s.compute_s), bytes(s.bytes_down), bytes(s.bytes_up), bytes(s.device_bytes_down_max), bytes(s.device_memory_max), seconds(s.recovery_s), joules(s.energy_J), seconds(s.planning_s)])));
  const names = good.map(s => s.system), pick = key => good.map(s => s[key] || null);
  const wide = values => { const v = values.filter(x => x > 0); return v.length > 1 && Math.max(...v) / Math.min(...v) > 50; };
  show('systems-charts', good.length > 1);
  if (good.length < 2) return;
  const traffic = [{label: 'down', y: pick('bytes_down'), color: COLORS.down}, {label: 'up', y: pick('bytes_up'), color: COLORS.up}];
  barChart('c-sysbytes', names, traffic, {kind: 'bytes', log: wide(traffic.flatMap(s => s.y))});
  const memory = [{label: 'memory', y: pick('device_memory_max'), color: COLORS.compute}];
  barChart('c-sysmemory', names, memory, {kind: 'bytes', log: wide(memory[0].y)});
  const energy = [{label: 'energy', y: pick('energy_J'), color: COLORS.redone}];
  barChart('c-sysenergy', names, energy, {kind: 'energy', log: wide(energy[0].y)});
}

// ---- runs ----
const CURVES = [['loss', 'training loss'], ['val_loss', 'validation loss'], ['time_s', 'time of a step', 'time'], ['bytes_down', 'bytes to devices, a step', 'bytes'], ['bytes_up', 'bytes from devices, a step', 'bytes'], ['energy_J', 'energy of a step', 'energy'], ['lost', 'blocks lost, a step'], ['recovery_s', 'time that losses added, a step', 'time']];
function compareCurves() {
  const key = $('compare-what').value, [, title, kind] = CURVES.find(c => c[0] === key), trained = data.runs.filter(r => r.metrics.some(m => m[key] != null));
  const x = [...new Set(trained.flatMap(r => r.metrics.map(m => m.step)))].sort((a, b) => a - b), at = new Map(x.map((s, i) => [s, i]));
  $('compare-caption').dataset.title = $('compare-caption').textContent = title;
  chart('c-compare', x, trained.map((r, i) => {
    const y = Array(x.length).fill(null);
    r.metrics.forEach(m => { y[at.get(m.step)] = m[key] ?? null; });
    return {label: r.name, y, color: RUN_COLORS[i % 8], dash: DASHES[i % 4], width: 2};
  }), {label: 'step', height: 300, kind, zero: kind != null || key === 'lost'});
}
function compare() {
  if (!show('s-compare', data.runs.length > 1)) return;
  const trained = data.runs.filter(r => r.metrics.length), first = trained[0];
  const beside = (r, key) => r === first ? '' : ` (${times(r.totals[key] / first.totals[key])})`;
  const head = [['run'], ['steps'], ['last loss'], ['validation'], ['time'], ['× bound'], ['× floor'], ['down'], ['up'], ['lost'], ['recovery'], ['energy']];
  $('compare').replaceChildren(table(head, data.runs.map(r => {
    const m = r.metrics, last = m[m.length - 1] || {}, v = m.filter(x => x.val_loss != null).pop() || {}, t = r.totals;
    if (!m.length) return [r.name, r.about, '', '', '', '', '', '', '', '', '', ''];
    return [r.name, String(last.step), num(last.loss, 4), num(v.val_loss, 4), seconds(t.time_s) + beside(r, 'time_s'), num(t.time_s / t.lower_bound_s), num(t.time_s / t.floor_s), bytes(t.bytes_down), bytes(t.bytes_up), num(t.lost), seconds(t.recovery_s), joules(t.energy_J) + beside(r, 'energy_J')];
  })));
  if (!show('compare-charts', first)) return;
  options($('compare-what'), CURVES.filter(([key]) => trained.some(r => r.metrics.some(m => m[key] != null))).map(([key, title]) => [key, title]));
  $('compare-what').onchange = compareCurves;
  compareCurves();
}

// ---- sweeps ----
function sweepChart(run) {
  const rows = run.sweep.rows, xKey = $('sweep-x').value, yKey = $('sweep-y').value, series = $('sweep-series').value, kind = kindOf(yKey);
  const values = [...new Set(rows.map(r => r[xKey]))], numeric = values.every(v => v !== '' && isFinite(+v));
  const names = numeric ? null : values.map(String), x = numeric ? values.map(Number).sort((a, b) => a - b) : values.map((_, i) => i);
  const place = new Map((numeric ? x : values).map((v, i) => [String(v), i])), groups = series ? [...new Set(rows.map(r => String(r[series])))] : [''];
  $('sweep-caption').dataset.title = $('sweep-caption').textContent = yKey + ' over ' + xKey;
  chart('c-sweep', x, groups.map((name, i) => {
    const y = Array(x.length).fill(null);
    for (const r of rows) if (!series || String(r[series]) === name) y[place.get(String(numeric ? +r[xKey] : r[xKey]))] = typeof r[yKey] === 'number' ? r[yKey] : null;
    return {label: name || yKey, y, color: RUN_COLORS[i % 8], dash: DASHES[i % 4], width: 2, points: {show: true, size: 7}};
  }), {label: xKey, kind, zero: true, height: 320, names, whole: !numeric, range: numeric ? undefined : () => [-.3, x.length - .7]});
}
function sweep(run) {
  const s = run.sweep;
  if (!show('s-sweep', s && s.rows.length)) return;
  const columns = [...new Set(s.rows.flatMap(r => Object.keys(r)))], measured = columns.filter(c => !s.grid.includes(c) && s.rows.some(r => typeof r[c] === 'number'));
  const many = [...s.grid, ...(columns.includes('system') ? ['system'] : [])].filter(c => new Set(s.rows.map(r => r[c])).size > 1), plot = s.plot || {};
  const axes = many.length ? many : s.grid, y = [].concat(plot.y || measured[0])[0];
  options($('sweep-x'), axes.map(k => [k, k]), plot.x || axes[0]);
  options($('sweep-y'), measured.map(k => [k, k]), y);
  options($('sweep-series'), [['', 'none'], ...axes.map(k => [k, k])], plot.series || axes.find(k => k !== $('sweep-x').value) || '');
  for (const id of ['sweep-x', 'sweep-y', 'sweep-series']) $(id).onchange = () => sweepChart(run);
  $('sweep-note').textContent = s.rows.length < s.rows_in_all ? `The first ${s.rows.length} of ${s.rows_in_all} rows; sweep.csv has all.` : '';
  const told = columns.filter(c => c !== 'point' && c !== 'why');
  $('sweep').replaceChildren(table(told.map(c => [c]), s.rows.map(r => told.map(c => typeof r[c] === 'number' && !s.grid.includes(c) ? quantity(kindOf(c), r[c]) : String(r[c] ?? '')))));
  sweepChart(run);
}

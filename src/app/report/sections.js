// The sections of one run: summary, curves, devices, operations, churn, input.

function cards(list) {
  $('cards').replaceChildren(...list.map(([label, value, main]) => el('div', null, main ? 'card main' : 'card', [el('b', value), el('span', label)])));
}
// The resource that was taken for the largest share of the time.
function busiest(t) {
  let best = {share: 0, name: '–'};
  for (const d of t.devices) {
    for (const [key, name] of [['down_s', 'downlink'], ['compute_s', 'processor'], ['up_s', 'uplink']]) {
      if (d[key] / t.end_s > best.share) best = {share: d[key] / t.end_s, name: `${name} of ${d.name} ${d.id}`};
    }
  }
  return best;
}
function summary(run) {
  const m = run.metrics, t = run.timeline, list = [];
  show('s-summary', m.length || run.systems.length);
  if (m.length) {
    const first = m[0], last = m[m.length - 1], total = run.totals, evaluated = m.filter(r => r.val_loss != null);
    list.push(['loss, first to last of ' + plural(last.step, 'step'), num(first.loss, 4) + ' → ' + num(last.loss, 4), true]);
    if (evaluated.length) list.push(['validation loss, last', num(evaluated[evaluated.length - 1].val_loss, 4), true]);
    list.push(['emulated time of all steps', seconds(total.time_s), true]);
    list.push(['beside the lower bound', times(total.time_s / total.lower_bound_s), true]);
    if (total.floor_s > 0) list.push(['beside the floor of any layout', times(total.time_s / total.floor_s)]);
    list.push(['real time', seconds(total.wall_s)]);
    if (total.dilation) list.push(['dilation: real over emulated time, clock wall', num(total.dilation, 3)]);
    list.push(['tokens a second', num(total.tokens / total.time_s)]);
    list.push(['sent to devices', bytes(total.bytes_down)], ['sent by devices', bytes(total.bytes_up)]);
    list.push(['energy', joules(total.energy_J)]);
    list.push(['blocks lost, computed again', num(total.lost) + ', ' + num(total.redone)]);
    list.push(['time that losses added', seconds(total.recovery_s)]);
    list.push(['devices that worked, last step' + (t ? ', of ' + t.fleet_size : ''), String(last.devices)]);
  } else if (run.systems.length) {
    const s = run.systems.find(s => s.feasible) || run.systems[0];
    list.push(['step of ' + s.system, s.feasible ? seconds(s.step_s) : 'not feasible', true], ['beside the lower bound', times(s.step_s / s.lower_bound_s), true]);
    if (s.floor_s > 0) list.push(['beside the floor of any layout', times(s.step_s / s.floor_s)]);
    list.push(['devices used', s.devices_used + ' of ' + s.devices, true]);
    list.push(['sent to devices', bytes(s.bytes_down)], ['sent by devices', bytes(s.bytes_up)], ['energy', joules(s.energy_J)]);
    list.push(['most memory of a device', bytes(s.device_memory_max)], ['time spent planning', seconds(s.planning_s)]);
  }
  if (t && t.devices.length) {
    const b = busiest(t);
    list.push(['busiest: ' + b.name, percent(b.share)]);
    if (t.memory.server_predicted) list.push(['server memory, predicted', bytes(t.memory.server_predicted)]);
  }
  cards(list);
}

function curves(run) {
  const m = run.metrics, t = run.timeline;
  if (!show('s-curves', m.length)) return;
  const x = m.map(r => r.step), y = key => m.map(r => r[key] ?? null);
  const loss = [{label: 'training', y: y('loss'), color: COLORS.down}];
  if (m.some(r => r.val_loss != null)) loss.push({label: 'validation', y: y('val_loss'), color: COLORS.lost, width: 2.4, dash: DASHES[1], points: {show: true, size: 7}});
  chart('c-loss', x, loss, {label: 'step', height: 260});
  const time = [{label: 'emulated', y: y('time_s'), color: COLORS.down}, {label: 'lower bound', y: y('lower_bound_s'), color: '#000', dash: DASHES[1]}];
  if (m.some(r => r.floor_s > 0)) time.push({label: 'floor of any layout', y: y('floor_s'), color: COLORS.away, dash: DASHES[3]});
  if (m.some(r => r.dilation != null)) time.push({label: 'real, clock wall', y: m.map(r => r.dilation != null ? r.time_s * r.dilation : null), color: COLORS.up, dash: DASHES[2]});
  chart('c-time', x, time,
    {label: 'step', zero: true, kind: 'time', height: 260});
  chart('c-bytes', x, [{label: 'to devices', y: y('bytes_down'), color: COLORS.down}, {label: 'from devices', y: y('bytes_up'), color: COLORS.up, dash: DASHES[1]}], {label: 'step', zero: true, kind: 'bytes'});
  chart('c-energy', x, [{label: 'energy', y: y('energy_J'), color: COLORS.compute}], {label: 'step', zero: true, kind: 'energy'});
  $('curves-note').textContent = run.one_row_in > 1 ? `One step in ${run.one_row_in} is drawn.` : '';
}

function devices(run) {
  const t = run.timeline;
  if (!show('s-devices', t && t.devices.length)) return;
  const d = t.devices, share = key => d.map(x => 100 * x[key] / (t.end_s || 1)), y = key => d.map(x => x[key]);
  deviceChart('c-busy', d, [{label: 'downlink', y: share('down_s'), color: COLORS.down}, {label: 'compute', y: share('compute_s'), color: COLORS.compute}, {label: 'uplink', y: share('up_s'), color: COLORS.up}]);
  deviceChart('c-devbytes', d, [{label: 'to the device', y: y('bytes_down'), color: COLORS.down}, {label: 'from it', y: y('bytes_up'), color: COLORS.up}], {kind: 'bytes'});
  const floor = Math.min(...d.map(x => x.memory_peak > 0 ? x.memory_peak : Infinity)) / 2, most = largest(y('memory'));
  deviceChart('c-memory', d, [{label: 'peak', y: d.map(x => x.memory_peak > 0 ? x.memory_peak : null), color: COLORS.compute}, {label: 'there is', y: y('memory'), color: '#8a929a'}], {kind: 'bytes', log: isFinite(floor) && most / floor > 50});
  deviceChart('c-devenergy', d, [{label: 'energy', y: y('energy_J'), color: COLORS.compute}], {kind: 'energy'});
  const head = [['profile'], ['devices'], ['used'], ['downlink'], ['compute'], ['uplink'], ['lost'], ['to them'], ['from them'], ['most memory'], ['energy']];
  $('groups').replaceChildren(table(head, t.groups.map(g => {
    const busy = key => percent(g[key] / g.count / (t.end_s || 1));
    return [g.name, String(g.count), String(g.used), busy('down_s'), busy('compute_s'), busy('up_s'), seconds(g.lost_s), bytes(g.bytes_down), bytes(g.bytes_up), bytes(g.memory_peak), joules(g.energy_J)];
  })));
  const full = d.reduce((a, x) => x.memory_peak / x.memory > a.memory_peak / a.memory ? x : a, d[0]);
  $('devices-note').textContent = `By profile: shares are means over its devices; bytes and energy are sums. Fullest device: ${full.name} ${full.id}, ${percent(full.memory_peak / full.memory)} of its memory.` +
    (t.parts.some(p => p.evaluation) ? ' Evaluations are in these figures; the totals of training steps are without them.' : '') +
    (t.memory.server_predicted ? ` Server: ${bytes(t.memory.server_predicted)} predicted, activations and gradients peaked at ${bytes(t.memory.server_activations_peak)}.` : '') +
    (t.one_device_in > 1 ? ` The charts show one device in ${t.one_device_in}; the table, all.` : '');
}

function operations(run) {
  const t = run.timeline;
  if (!show('s-operations', t && t.operations.length)) return;
  const head = [['operation'], ['time'], ['bound'], ['ratio'], ['a step', 'wide'], ['kind', 'wide'], ['time | bound', 'bars']];
  const rows = list => {
    const most = Math.max(...list.map(o => o.time_s));
    return table(head, list.map(o => [o.type, seconds(o.time_s), o.bound_s > 0 ? seconds(o.bound_s) : '–', o.bound_s > 0 ? times(o.time_s / o.bound_s) : '–', num(o.count), o.kind, bar(o.time_s, o.bound_s, most)]));
  };
  const sorted = [...t.operations].sort((a, b) => b.time_s - a.time_s), fleet = sorted.filter(o => o.bound_s > 0), own = sorted.filter(o => !(o.bound_s > 0));
  $('operations').replaceChildren(rows(fleet));
  show('kernels-box', own.length);
  if (own.length) {
    $('kernels-title').textContent = `${plural(own.length, 'kernel')} of the server: ${seconds(sum(own, 'time_s'))} a step`;
    $('kernels').replaceChildren(rows(own));
  }
}

function profile(run) {
  const p = run.profile;
  if (!show('s-profile', p && p.steps)) return;
  const phases = Object.keys(p.phases_s), total = phases.reduce((s, k) => s + p.phases_s[k], 0), most = Math.max(...Object.values(p.phases_s));
  $('phases').replaceChildren(table([['phase'], ['time'], ['share'], ['', 'bars']], phases.map(k => [k, seconds(p.phases_s[k] / p.steps), percent(p.phases_s[k] / total), bar(p.phases_s[k], 0, most)])));
  const whole = o => phases.reduce((s, k) => s + o.phases_s[k], 0);
  $('phase-types').replaceChildren(table([['operation'], ['all'], ...phases.map(k => [k])], [...p.operations].sort((a, b) => whole(b) - whole(a)).map(o => [o.type || '(none)', seconds(whole(o) / p.steps), ...phases.map(k => o.phases_s[k] > 0 ? seconds(o.phases_s[k] / p.steps) : '–')])));
}

// Steps and their sums: of a simulation, those of the system that was simulated event by event.
function steps_of(run) {
  const simulated = run.systems.find(s => s.steps);
  if (run.metrics.length || !simulated) return {rows: run.metrics, total: run.totals};
  const rows = simulated.steps.map((step, i) => ({...step, step: i + 1, time_s: step.step_s})), losses = simulated.losses || [], total = {replanning_s: sum(losses, 'planning_s')};
  for (const key of ['time_s', 'lost', 'redone', 'server_sums', 'witnesses', 'recovery_s']) total[key] = sum(rows, key);
  for (const key of ['detection_s', 'resending_s', 'recomputing_s']) total[key] = sum(losses, key);
  return {rows, total};
}

function churn(run) {
  const {rows: m, total} = steps_of(run), t = run.timeline, changes = t ? t.changes : [], all = changes.length + (t ? t.changes_left_out : 0);
  if (!show('s-churn', m.length || t)) return;
  const lost = sum(m, 'lost') + sum(m, 'redone') + sum(m, 'rejected');
  show('f-churn', lost); show('f-recovery', lost);
  const counts = ['left', 'joined', 'slowed', 'hung', 'lies'].map(kind => [kind, changes.filter(c => c.kind === kind).length]).filter(([, n]) => n);
  $('churn').textContent = !lost && !all ? 'No device left, slowed down or lied, and no block was lost.' :
    (counts.length ? 'Devices: ' + counts.map(([kind, n]) => `${kind} ${n} ×`).join(', ') + '. ' : '') +
    `${plural(total.lost || 0, 'block')} lost, ${total.redone || 0} computed again, ${total.rejected || 0} rejected${total.server_sums ? `, ${plural(total.server_sums, 'sum')} of gradients made by the server` : ''}; losses added ${seconds(total.recovery_s || 0)} (${percent((total.recovery_s || 0) / (total.time_s || 1))} of the time).` +
    (total.lost ? ` Of all losses together: ${seconds(total.detection_s)} until they were noticed, ${seconds(total.replanning_s)} of processor time planning anew, ${seconds(total.resending_s)} sending operands again, ${seconds(total.recomputing_s)} from then until the last block was back.` : '');
  const v = run.verification;
  if (v && v.mode !== 'off') {
    $('churn').append(` Verification (${v.mode}): ${v.checked} of ${plural(v.blocks, 'block')} checked, ${v.wrong.length} wrong` +
      (total.witnesses > 0 ? `; second devices were asked for ${plural(total.witnesses, 'digest')}` : '') +
      (v.left_out.length ? `; left out: ${v.left_out.length > 1 ? 'devices' : 'device'} ${v.left_out.join(', ')}` : '') +
      (v.slip_probability > 0 ? `; with probability ${percent(v.slip_probability)} a wrong block was taken for right before its device was found out` : '') + '.');
  }
  if (lost) {
    const x = m.map(r => r.step), y = key => m.map(r => r[key] || 0);
    chart('c-churn', x, [{label: 'lost', y: y('lost'), color: COLORS.lost}, {label: 'computed again', y: y('redone'), color: COLORS.redone, dash: DASHES[1]}, {label: 'rejected', y: y('rejected'), color: '#000', dash: DASHES[2]}], {label: 'step', zero: true});
    const parts = m.some(r => r.detection_s != null) ? [{label: 'detection', y: y('detection_s'), color: '#000', dash: DASHES[2]}, {label: 're-sending', y: y('resending_s'), color: COLORS.down, dash: DASHES[1]}, {label: 're-computing', y: y('recomputing_s'), color: COLORS.compute, dash: DASHES[3]}] : [];
    chart('c-recovery', x, [{label: 'added', y: y('recovery_s'), color: COLORS.lost}, ...parts], {label: 'step', zero: true, kind: 'time'});
  }
  show('changes-box', all);
  if (!all) return;
  const shown = changes.slice(0, 100);
  $('changes-title').textContent = plural(all, 'change') + ' of devices' + (all > shown.length ? `; the first ${shown.length}` : '');
  $('changes').replaceChildren(table([['at'], ['device'], ['what']], shown.map(c => [seconds(c.at), `${t.devices.length === t.fleet_size ? t.devices[c.device].name + ' ' : ''}${c.device}`, c.kind + (c.kind === 'slowed' ? ` to ${times(c.factor)}` : '')])));
}

function input(run) {
  if (!show('s-input', run.input)) return;
  const given = $('only-given').checked, lines = run.input.split('\n');
  $('input').textContent = (given ? lines.filter(line => !/# default\s*$/.test(line)) : lines).join('\n');
}

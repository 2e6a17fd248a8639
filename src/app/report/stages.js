// The layout of a step in stages: a row a stage, the head on top; a box a replica, as wide as its share of the uplinks,
// filled with what the device reserves of its memory; and beside it what each stage's resources are taken for.
const STAGE_TIMES = [['passes_s', 'results over uplinks'], ['owner_links_s', 'owners’ links'], ['weights_s', 'weights'], ['compute_s', 'processors']];
const HELD = [['weights_bytes', 'weights'], ['sequences_bytes', 'chunks'], ['sums_bytes', 'owners']];
const MANY_REPLICAS = 1500;  // beyond them a row is one box, the mean of its replicas

function memoryBox(devices, width, title) {
  const total = sum(devices, 'memory'), box = el('span', null, 'held');
  box.style.width = width + '%';
  for (const [key, color] of HELD) {
    const part = el('i');
    part.style.height = 100 * sum(devices, key) / total + '%';
    part.style.background = COLORS[color];
    box.append(part);
  }
  box.title = title;
  return box;
}
function describeDevice(d) {
  return `${d.name} ${d.id}: ${bytes(d.weights_bytes)} weights, ${bytes(d.sequences_bytes)} open sequences, ${bytes(d.sums_bytes)} sums of ${bytes(d.memory)}` +
    (d.owner_of.length ? `; owns slices of stage ${d.owner_of.join(', ')}` : '');
}
function stages(run) {
  const layout = run.layout;
  if (!show('s-stages', layout && layout.stages.length)) return;
  const device = new Map(layout.devices.map(d => [d.id, d])), all = layout.stages, replicas = all.reduce((n, s) => n + s.replicas.length, 0);
  const most = largest(all.flatMap(s => STAGE_TIMES.map(([key]) => s[key]))), slowest = all.reduce((a, s) => largest(STAGE_TIMES.map(([k]) => s[k])) > largest(STAGE_TIMES.map(([k]) => a[k])) ? s : a, all[0]);
  const idle = layout.devices.filter(d => !d.replica_of.length && !d.owner_of.length).length;
  $('stages-note').textContent = `${plural(all.length, 'stage')}, ${plural(replicas, 'replica')}, chunks of ${layout.chunk_tokens} tokens` + (idle ? `; ${plural(idle, 'device')} without a part in it` : '') +
    `. Taken longest: ${slowest.bound_by} of stage ${all.indexOf(slowest)} (${slowest.pieces}), ${seconds(largest(STAGE_TIMES.map(([k]) => slowest[k])))}.`;
  $('stages-legend').replaceChildren(...[['weights', 'weights'], ['chunks', 'open sequences and chunks at work'], ['owners', 'gradient sums']].map(([key, label]) => {
    const i = el('i'); i.style.background = COLORS[key];
    return el('span', null, 'key still', [i, label]);
  }));
  const rounds = 1 + Math.max(...all.map(s => s.round ?? 0));
  const boxes = s => replicas > MANY_REPLICAS
    ? [memoryBox(s.replicas.map(id => device.get(id)), 100, `the mean of ${plural(s.replicas.length, 'replica')}`)]
    : s.replicas.map(id => { const d = device.get(id); return memoryBox([d], 100 * d.uplink / s.uplinks, describeDevice(d)); });
  $('stages').replaceChildren(...all.map((s, n) => {
    const times = el('span', null, 'taken', STAGE_TIMES.map(([key, label]) => {
      const i = el('i', null, s.bound_by === ({passes_s: 'uplinks', owner_links_s: "owners' links", weights_s: 'weights', compute_s: 'processors'})[key] ? 'binds' : '');
      i.style.width = 100 * s[key] / most + '%';
      i.title = `${label}: ${seconds(s[key])}`;
      return i;
    }));
    return el('div', null, 'stage', [el('span', `${n}  ${s.pieces}${rounds > 1 ? `, round ${s.round + 1}` : ''}${s.tiles ? ', in tiles' : ''}`, 'name'), el('span', null, 'replicas', boxes(s)), times]);
  }).reverse());
  const head = [['stage'], ['pieces'], ['weights'], ['replicas'], ['memory of one'], ['uplinks'], ['results take'], ['weights in'], ['computing'], ['owners'], ['most sums'], ['owners’ links'], ['down'], ['up'], ['bound by']];
  $('stages-table').replaceChildren(table(head, all.map((s, n) => [String(n), s.pieces, bytes(s.weights_bytes), String(s.replicas.length),
    s.least_memory_bytes === s.most_memory_bytes ? bytes(s.most_memory_bytes) : `${bytes(s.least_memory_bytes)} – ${bytes(s.most_memory_bytes)}`, bytes(s.uplinks) + '/s', seconds(s.passes_s), seconds(s.weights_s), seconds(s.compute_s),
    String(s.owners), bytes(s.slices_bytes), seconds(s.owner_links_s), bytes(s.bytes_down), bytes(s.bytes_up), s.bound_by])));
}

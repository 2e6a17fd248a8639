// Which run is shown, and what the window does.
function showRun(index) {
  const run = data.runs[index];
  $('title').textContent = run.name;
  $('subtitle').textContent = run.about;
  document.title = 'cleave: ' + run.name;
  for (const part of [sweep, systems, summary, curves, loadTimeline, stages, devices, operations, profile, churn, input]) part(run);
  $('only-given').onchange = () => input(run);
  $('nav').replaceChildren(...[...document.querySelectorAll('main > section')].filter(s => !s.hidden).map(s => {
    const a = el('a', s.dataset.nav);
    a.href = '#' + s.id;
    return a;
  }));
}
window.addEventListener('error', e => state.errors.push(String(e.message)));
show('picker', data.runs.length > 1);
options($('run'), data.runs.map((r, i) => [String(i), r.name]));
$('run').onchange = () => showRun(+$('run').value);
compare();
showRun(0);

function fit() {
  for (const [id, u] of Object.entries(state.charts)) {
    const width = $(id).clientWidth;
    if (width && width !== u.width) u.setSize({width, height: u.height});
  }
  draw();
}
let timer = 0, lastWidth = window.innerWidth;
window.addEventListener('resize', () => {
  if (window.innerWidth === lastWidth) return;
  lastWidth = window.innerWidth;
  clearTimeout(timer);
  timer = setTimeout(fit, 120);
});
// Paper has no mouse: what is folded is opened, and charts take the sheet's width.
window.addEventListener('beforeprint', () => { document.querySelectorAll('details').forEach(d => { d.open = true; }); fit(); });
window.addEventListener('afterprint', fit);
Object.assign(state, {view, draw, zoom, ready: true});

/** One key, one action; nothing while typing into a field. */

const PAN = 0.15;
const ZOOM = 0.7;

const ACTIONS = {
  w: (app) => app.zoom(ZOOM, app.pointerTime()),
  s: (app) => app.zoom(1 / ZOOM, app.pointerTime()),
  "+": (app) => app.zoom(ZOOM, app.pointerTime()),
  "-": (app) => app.zoom(1 / ZOOM, app.pointerTime()),
  a: (app) => app.pan(-PAN),
  d: (app) => app.pan(PAN),
  arrowleft: (app) => app.pan(-PAN),
  arrowright: (app) => app.pan(PAN),
  f: (app) => app.fit(),
  0: (app) => app.jumpTo(0, app.trace.duration_ns),
  1: (app) => app.trace.focus && app.jumpTo(app.trace.focus.start, app.trace.focus.end),
  home: (app) => app.jumpTo(0, app.trace.duration_ns),
  enter: (app) => app.chosen || app.chooseFirst(),
  arrowup: (app) => app.stepLane(-1),
  arrowdown: (app) => app.stepLane(1),
  g: (app) => app.stepGap(),
  o: (app) => app.stepSide(),
  m: (app) => app.selectChosen(),
  ">": (app) => app.extendSelection(1),
  "<": (app) => app.extendSelection(-1),
  b: (app) => app.notes.write(),
  c: (app) => app.panel.copy(),
  t: (app) => app.toggleTheme(),
  n: (app) => app.stepMatch(1),
  p: (app) => app.stepMatch(-1),
  ".": (app) => app.stepEvent(1),
  ",": (app) => app.stepEvent(-1),
  "/": (app) => app.toolbar.search.focus(),
  "?": (app) => app.help.showModal(),
  escape: (app) => app.clear(),
};

export function listenToKeys(app) {
  window.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || app.help.open || !app.isAttended) return;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
      typing(app, event);
      return;
    }
    const action = ACTIONS[event.key.toLowerCase()];
    if (!action || belongsToFocus(app, event)) return;
    event.preventDefault();
    action(app);
  });
}

/** Enter, and the arrows, are those of a focused button, lane or scrolling part. */
function belongsToFocus(app, { key, target }) {
  const isPlot = target === app.plot || target === document.body;
  return !isPlot && /^(Enter|Arrow\w+|Home)$/.test(key);
}

function typing(app, event) {
  if (event.target !== app.toolbar.search) return;
  if (event.key === "Enter") app.enter(event.shiftKey ? -1 : 1);
  if (event.key !== "Escape") return;
  event.target.blur();
  app.clear();
}

import { button, element, oneTabStop } from "./dom.mjs";
import { SOUGHT } from "./matching.mjs";
import { makeLaneMenu } from "./lane_menu.mjs";

const ANALYSED = "the window that the analyses look at (1)";

/** The line above the lanes: search, legend, actions. Legend chips switch categories on and off. */
export function makeToolbar(app) {
  const search = element("input", {
    type: "search",
    placeholder: "Search: all-reduce, /^nccl.*f32/",
    size: 28,
    "aria-label": "Search names: text or /regular expression/",
  });
  const found = element("span", { cls: "note", role: "status" });
  const kind = element("select", { "aria-label": "Search among", title: "What to search among" });
  for (const [value, label] of SOUGHT.filter(([, , kinds]) => hasRows(app.trace, kinds))) {
    kind.append(element("option", { value, text: label }));
  }
  kind.addEventListener("change", () => app.search(search.value, kind.value));
  search.addEventListener("input", () => app.search(search.value));
  const chips = element("div", { cls: "chips", role: "group", "aria-label": "Legend" });
  const chipButtons = usedCategories(app.trace).map((category) => makeChip(app, category));
  chips.append(...chipButtons.map((chip) => chip.node));
  oneTabStop(chips);
  const range = element("span", { cls: "range", role: "status" });
  const { focus } = app.trace;
  const menu = makeLaneMenu(app);
  const actions = element(
    "div",
    { cls: "actions" },
    ...(focus ? [button(focus.label, `${focus.label}: ${ANALYSED}`, () => app.jumpTo(focus.start, focus.end))] : []),
    button("Fit selection", "Fit selection: zoom to it or to what is chosen (F)", () => app.fit()),
    button("Whole trace", "Whole trace (0)", () => app.jumpTo(0, app.trace.duration_ns)),
    button("◐", "◐ Light or dark (T)", () => app.toggleTheme()),
    menu.node,
    button("Save picture", "Save picture: what is shown, as PNG", () => app.savePicture("png")),
    button("SVG", "SVG: what is shown, as a drawing", () => app.savePicture("svg")),
    button("?", "? Keys and gestures", () => app.help.showModal()),
  );
  const previous = button("‹", "‹ Previous match (P)", () => app.stepMatch(-1));
  const next = button("›", "› Next match (N)", () => app.stepMatch(1));
  const searchBox = element("div", { cls: "search" }, search, kind, previous, next, found);
  const node = element("div", { cls: "toolbar" }, searchBox, actions, chips, range);
  return {
    node,
    search,
    kind,
    menu,
    showFound: (text) => (found.textContent = text),
    showRange: (text) => (range.textContent = text),
    showOff: (hidden) => chipButtons.forEach((chip) => chip.press(!hidden.has(chip.category))),
    paint: (colours) => chipButtons.forEach((chip) => chip.paint(colours)),
  };
}

const hasRows = ({ rows }, kinds) => !kinds || rows.some(({ kind }) => kinds.includes(kind));

/** The categories that events of this trace and states of its devices have; those of devices first. */
function usedCategories(trace) {
  const used = new Set(trace.rows.flatMap((row) => row.channels.map((channel) => channel.category)));
  for (const group of trace.groups) {
    for (const { category } of group.states?.channels ?? []) {
      if (!trace.categories[category].like) used.add(category);
    }
  }
  const ofDevices = new Set([...trace.states, trace.not_recorded]);
  const isOfHost = (category) => trace.categories[category].part === null && !ofDevices.has(category);
  return [...used].sort((a, b) => isOfHost(a) - isOfHost(b) || a - b);
}

function makeChip(app, category) {
  const swatch = element("i");
  const node = element("button", { cls: "chip", type: "button", "aria-pressed": "true" }, swatch);
  node.append(app.trace.categories[category].label);
  node.addEventListener("click", () => app.toggleCategory(category));
  const press = (isShown) => node.setAttribute("aria-pressed", String(isShown));
  return { node, category, press, paint: (colours) => (swatch.style.background = colours[category]) };
}

const KEYS = [
  ["W / S", "zoom in and out at the pointer (also the wheel, or two fingers)"],
  ["A / D, ← / →", "pan (also drag, Shift + wheel)"],
  ["click, Enter", "what it is: events, gaps, states and steps; an arrow leads to the launch"],
  [", and .", "the previous or next event of the lane"],
  ["↑ / ↓", "the lane above or below, at the same time"],
  ["G", "the longest idle gap in view, then the next longest"],
  ["O", "the same event of the other recording, where two are side by side"],
  ["Shift + click", "measure from what is chosen to what is clicked; of two steps, with both"],
  ["Shift + drag, M", "select a span (edges snap to events), or what is chosen"],
  ["< and >", "move the end of the selection from edge to edge"],
  ["F, double click", "zoom to what is chosen or selected"],
  ["B", "write a note here: flags lead back, the address carries them"],
  ["C", "copy what the panel says"],
  ["0, Home", "show everything"],
  ["1", "show the window that the analyses look at"],
  ["/", "search, also step:3..5; Enter goes down the list, N and P to the next and previous match in time"],
  ["T", "light or dark"],
  ["Esc", "clear the selection and the search"],
  ["fingers", "drag moves, pinch zooms, a long press selects (then draw)"],
  ["in the lanes", "↑ ↓ move, Enter folds, P pins, H hides, Alt + ↑ ↓ reorder (or drag)"],
];

export function makeHelp() {
  const dialog = element("dialog", { "aria-label": "Keys and gestures" });
  const list = element("dl");
  for (const [keys, meaning] of KEYS) {
    list.append(element("dt", {}, element("kbd", { text: keys })), element("dd", { text: meaning }));
  }
  dialog.append(element("h3", { text: "Keys and gestures" }), list, button("Close", "", () => dialog.close()));
  return dialog;
}

import { button, element, oneTabStop } from "./dom.mjs";
import { SOUGHT } from "./matching.mjs";
import { makeLaneMenu } from "./lane_menu.mjs";

const ANALYZED = "go to the analyzed window (1)";

/** The line above the lanes: search and actions; legend and range for the panel. Legend chips switch categories on and off. */
export function makeToolbar(app) {
  const search = element("input", {
    type: "search",
    placeholder: "Search: all-reduce, /^nccl.*f32/",
    size: 28,
    "aria-label": "Search names: text or /regular expression/",
  });
  const found = element("span", { cls: "note", role: "status" });
  const kind = element("select", { "aria-label": "Search in", title: "Kind of events to search" });
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
    ...(focus ? [button(focus.label, `${focus.label}: ${ANALYZED}`, () => app.jumpTo(focus.start, focus.end))] : []),
    button("Fit selection", "Fit selection: zoom to the selected span or event (F)", () => app.fit()),
    button("Whole trace", "Whole trace (0)", () => app.jumpTo(0, app.trace.duration_ns)),
    button("◐", "◐ Switch between light and dark theme (T)", () => app.toggleTheme()),
    menu.node,
    button("Save picture", "Save picture: save the current view as PNG", () => app.savePicture("png")),
    button("SVG", "SVG: save the current view as SVG", () => app.savePicture("svg")),
    button("?", "? Keys and gestures", () => app.help.showModal()),
  );
  const previous = button("‹", "‹ Previous match (P)", () => app.stepMatch(-1));
  const next = button("›", "› Next match (N)", () => app.stepMatch(1));
  const searchBox = element("div", { cls: "search" }, search, kind, previous, next, found);
  const node = element("div", { cls: "toolbar" }, searchBox, actions);
  return {
    node,
    chips,
    range,
    search,
    kind,
    menu,
    showFound: (text) => (found.textContent = text),
    showRange: (text) => (range.textContent = text),
    showOff: (hidden) => chipButtons.forEach((chip) => chip.press(!hidden.has(chip.category))),
    paint: (colors) => chipButtons.forEach((chip) => chip.paint(colors)),
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
  return { node, category, press, paint: (colors) => (swatch.style.background = colors[category]) };
}

const KEYS = [
  ["W / S", "zoom in and out at the pointer (also mouse wheel or two fingers)"],
  ["A / D, ← / →", "pan (also drag or Shift + wheel)"],
  ["click, Enter", "show details of an event, gap, state, or step; an arrow points to its launch"],
  [", and .", "go to the previous or next event in the lane"],
  ["↑ / ↓", "go to the lane above or below at the same time"],
  ["G", "go to the longest idle gap in view, then to the next longest"],
  ["O", "go to the same event in the other trace (when two traces are shown)"],
  ["Shift + click", "measure the time between the selected event and the clicked event"],
  ["Shift + drag, M", "select a time span (edges snap to events); M selects the span of the selected event"],
  ["< and >", "move the end of the selection to the previous or next event edge"],
  ["F, double click", "zoom to the selected event or span"],
  ["B", "add a note here; click its flag to return; the page address contains all notes"],
  ["C", "copy the details panel as text"],
  ["0, Home", "show the whole trace"],
  ["1", "show the analyzed window"],
  ["/", "search for names or steps (step:3..5); Enter goes to the next result in the list"],
  ["N / P", "go to the next or previous match in time"],
  ["T", "switch between light and dark theme"],
  ["Esc", "clear the selection and the search"],
  ["touch", "drag to pan, pinch to zoom, long-press and drag to select"],
  ["lane names", "↑ ↓ move the focus, Enter folds, P pins, H hides, Alt + ↑ ↓ or drag reorders"],
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

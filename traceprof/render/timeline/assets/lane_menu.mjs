import { KINDS } from "./lane_set.mjs";
import { button, element } from "./dom.mjs";

/** What decides about all lanes at once: a filter by rank, host or name, kinds, folding, order. */

export function makeLaneMenu(app) {
  const filter = element("input", {
    ...{ type: "search", placeholder: "rank 3, node2, stream 7 …", size: 18 },
    "aria-label": "Show only lanes that match this rank, host, kind, or name",
  });
  filter.addEventListener("input", () => app.arrange((lanes) => (lanes.filter = filter.value)));
  const kinds = element("div", { cls: "kinds", role: "group", "aria-label": "Lane kinds" });
  const checks = KINDS.filter(([kind]) => isThere(app.trace, kind)).map(([kind, label]) => makeCheck(app, kind, label));
  kinds.append(...checks.map(({ node }) => node));
  const charts = element("div", { cls: "kinds", role: "group", "aria-label": "Charts" });
  const chartChecks = app.lanes.charts.map((chart) => makeChartCheck(app, chart));
  charts.append(...chartChecks.map(({ node }) => node));
  const note = element("p", { cls: "note" });
  const actions = element(
    "div",
    { cls: "chips" },
    button("Fold all", "", () => app.arrange(({ open }) => open.clear())),
    button("Open all", "", () => app.arrange((lanes) => lanes.openAll())),
    button("Show hidden", "", () => app.arrange((lanes) => lanes.showHidden())),
    button("Original order", "", () => app.arrange((lanes) => lanes.originalOrder())),
  );
  const box = element("div", { cls: "menu", role: "dialog", "aria-label": "Lanes", hidden: "" });
  box.append(filter, kinds, ...(chartChecks.length ? [element("b", { text: "Charts" }), charts] : []), actions, note);
  const opener = button("Lanes", "", () => toggle(!box.hidden));
  opener.setAttribute("aria-expanded", "false");
  const toggle = (hide) => {
    box.hidden = hide;
    opener.setAttribute("aria-expanded", String(!hide));
    (hide ? opener : filter).focus();
  };
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    toggle(true);
  });
  const show = () => {
    const { lanes } = app;
    if (filter.value !== lanes.filter) filter.value = lanes.filter;
    for (const { input, kind } of checks) input.checked = !lanes.kinds.has(kind);
    for (const { input, key } of chartChecks) input.checked = !lanes.hidden.has(key);
    const hidden = lanes.hidden.size;
    const keys = "Drag a name to move its lane. For the focused lane: Alt + ↑ ↓ moves, H hides, P pins.";
    note.textContent = `${hidden} lanes hidden. ${keys}`;
    opener.textContent = hidden || lanes.kinds.size || lanes.filter ? "Lanes (some hidden)" : "Lanes";
  };
  return { node: element("div", { cls: "menu-place" }, opener, box), show, close: () => box.hidden || toggle(true) };
}

const isThere = ({ rows, groups }, kind) => rows.some((row) => row.kind === kind) || groups.some((group) => group.kind === kind);

function makeCheck(app, kind, label) {
  const change = (isOn) => app.arrange(({ kinds }) => (isOn ? kinds.delete(kind) : kinds.add(kind)));
  return { kind, ...checkbox(label, change) };
}

function makeChartCheck(app, { key, title }) {
  return { key, ...checkbox(title, (isOn) => app.arrange((lanes) => (isOn ? lanes.show(key) : lanes.hide(key)))) };
}

function checkbox(label, change) {
  const input = element("input", { type: "checkbox" });
  input.addEventListener("change", () => change(input.checked));
  return { input, node: element("label", {}, input, label) };
}

import { CHART_GAP, CHART_HEIGHT, MARGIN } from "./figure.mjs";
import { element } from "./dom.mjs";

/**
 * The names of the lanes, left of the plot, as a tree: one of them takes the focus, the arrows go
 * from line to line. Groups fold, lanes can be pinned, hidden, and moved among their siblings.
 */

const LEVEL = { section: 1, group: 2, row: 3 };
const DRAG_PX = 4;

export function drawLaneLabels(app, node) {
  const { activeElement } = document;
  const focused = node.contains(activeElement) ? activeElement.dataset.key : null;
  const current = app.lines.find(({ key }) => key === (focused ?? node.dataset.current)) ?? app.lines[0];
  const tree = element("div", { cls: "tree", role: "tree", "aria-label": "Lanes" });
  for (const line of app.lines) tree.append(label(app, line, line === current));
  const charts = app.charts.map((chart, i) => {
    const top = MARGIN.top + app.height + CHART_GAP + i * (CHART_HEIGHT + CHART_GAP);
    return place(chartLabel(app, chart), top, 18);
  });
  node.replaceChildren(tree, ...charts);
  if (focused) tree.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

/** "Lanes" shows and hides charts by keyboard. */
function chartLabel(app, { key, title }) {
  const words = "Hide this chart (use “Lanes” to show it again)";
  const hide = tool("hide", "×", words, () => app.arrange((lanes) => lanes.hide(key)));
  return element("div", { cls: "lane row chart", title }, element("span", { cls: "name", text: title }), hide);
}

function place(node, top, height) {
  node.style.top = `${top}px`;
  node.style.height = `${height}px`;
  return node;
}

function label(app, line, isCurrent) {
  const node = element("div", {
    ...{ cls: `lane ${line.type}`, title: line.label, role: "treeitem", "aria-label": line.label },
    ...{ "aria-level": LEVEL[line.type], tabindex: isCurrent ? "0" : "-1" },
  });
  node.dataset.key = line.key;
  if (line.type === "group") {
    node.setAttribute("aria-expanded", String(line.isOpen));
    node.append(element("span", { cls: "fold", text: line.isOpen ? "▾" : "▸", "aria-hidden": "true" }));
  }
  node.append(element("span", { cls: "name", text: line.label }));
  if (line.parent !== undefined) node.append(...tools(app, line));
  node.addEventListener("keydown", (event) => press(app, node, line, event));
  node.addEventListener("focus", () => makeCurrent(node));
  if (line.parent !== undefined) makeMovable(app, node, line);
  else node.addEventListener("click", () => node.focus({ preventScroll: true }));
  return place(node, MARGIN.top + line.y, line.height);
}

/** For the mouse only: the keys P and H do the same. */
function tools(app, line) {
  const isPinned = app.pinned.has(line.row);
  const hide = tool("hide", "×", "Hide this lane (H; use “Lanes” to show it again)", () => hideLine(app, line));
  if (line.type !== "row") return [hide];
  const title = isPinned ? "Unpin this lane (P)" : "Pin this lane to the top (P)";
  return [tool(isPinned ? "pin on" : "pin", isPinned ? "◆" : "◇", title, () => app.togglePin(line.row)), hide];
}

function tool(cls, text, title, use) {
  const node = element("span", { cls: `tool ${cls}`, text, title, "aria-hidden": "true" });
  node.addEventListener("pointerdown", (event) => event.stopPropagation());
  node.addEventListener("click", (event) => {
    event.stopPropagation();
    use();
  });
  return node;
}

const hideLine = (app, { key, row }) =>
  app.arrange((lanes) => {
    lanes.hide(key);
    lanes.pinned.delete(row);
  });

function makeCurrent(node) {
  for (const other of node.parentElement.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
  node.tabIndex = 0;
  node.closest(".lanes").dataset.current = node.dataset.key;
}

function press(app, node, line, event) {
  const { key } = event;
  const step = { ArrowDown: 1, ArrowUp: -1 }[key];
  if (event.ctrlKey || event.metaKey) return;
  if (step && event.altKey) shift(app, line, step);
  else if (step) (step > 0 ? node.nextSibling : node.previousSibling)?.focus();
  else if (key === "Home") node.parentElement.firstChild.focus();
  else if (key === "End") node.parentElement.lastChild.focus();
  else if (!act(app, line, key)) return;
  event.preventDefault();
  event.stopPropagation();
}

/** What a key does to a line; whether it does anything. */
function act(app, line, key) {
  const isGroup = line.type === "group";
  const folds = { ArrowRight: !line.isOpen, ArrowLeft: line.isOpen, Enter: true, " ": true }[key];
  if (isGroup && folds) app.toggleGroup(line.group);
  else if (line.row !== undefined && key.toLowerCase() === "p") app.togglePin(line.row);
  else if (line.parent !== undefined && key.toLowerCase() === "h") hideLine(app, line);
  else if (line.row !== undefined && key === "Enter") app.chooseInLane(line);
  else return false;
  return true;
}

/** What a line is called among its siblings: the line of a rank stands for its section. */
const siblingName = ({ key, sibling }) => sibling ?? key;

const siblingsOf = (app, { parent }) => [...new Set(app.lines.filter((line) => line.parent === parent).map(siblingName))];

function shift(app, line, step) {
  if (line.parent === undefined) return;
  const siblings = siblingsOf(app, line);
  const target = siblings[siblings.indexOf(siblingName(line)) + step];
  if (target) app.arrange((lanes) => lanes.move(line.parent, siblings, siblingName(line), target));
}

/** A click folds a group or takes the focus; a drag puts the line where a sibling is. */
function makeMovable(app, node, line) {
  let from = null;
  node.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    from = event.clientY;
    node.setPointerCapture(event.pointerId);
  });
  node.addEventListener("pointermove", (event) => {
    if (from === null || Math.abs(event.clientY - from) < DRAG_PX) return;
    node.classList.add("moving");
    node.style.translate = `0 ${event.clientY - from}px`;
  });
  node.addEventListener("pointerup", (event) => {
    const moved = from === null ? 0 : event.clientY - from;
    from = null;
    if (node.classList.contains("moving")) drop(app, line, line.y + line.height / 2 + moved);
    else if (line.type === "group") app.toggleGroup(line.group);
    else node.focus({ preventScroll: true });
  });
  node.addEventListener("pointercancel", () => {
    from = null;
    app.layout();
  });
}

function drop(app, line, y) {
  const siblings = siblingsOf(app, line);
  const within = app.lines.filter(({ parent, y: top }) => parent === line.parent && top <= y);
  const target = within.length ? siblingName(within.at(-1)) : siblings[0];
  app.arrange((lanes) => lanes.move(line.parent, siblings, siblingName(line), target));
}

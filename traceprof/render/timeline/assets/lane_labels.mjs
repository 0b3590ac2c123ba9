import { CHART_GAP, CHART_HEIGHT, MARGIN } from "./figure.mjs";
import { element } from "./dom.mjs";

/** The names of the lanes, left of the plot; groups open and close, rows can be pinned. */
export function drawLaneLabels(app, node) {
  const focused = document.activeElement?.dataset?.key;
  node.textContent = "";
  for (const line of app.lines) node.append(label(app, line));
  app.charts.forEach(({ title }, i) => {
    const top = MARGIN.top + app.height + CHART_GAP + i * (CHART_HEIGHT + CHART_GAP);
    node.append(place(element("div", { cls: "lane row", text: title }), top, 18));
  });
  if (focused) node.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

function place(node, top, height) {
  node.style.top = `${top}px`;
  node.style.height = `${height}px`;
  return node;
}

function label(app, line) {
  const node = element("div", { cls: `lane ${line.type}`, title: line.label });
  if (line.type === "group") makeFoldable(app, node, line);
  node.append(element("span", { cls: "name", text: line.label }));
  if (line.type === "row") node.append(pin(app, line.row));
  return place(node, MARGIN.top + line.y, line.height);
}

function makeFoldable(app, node, line) {
  node.tabIndex = 0;
  node.dataset.key = `group${line.group}`;
  node.setAttribute("role", "button");
  node.setAttribute("aria-expanded", String(line.isOpen));
  node.append(element("span", { cls: "fold", text: line.isOpen ? "▾" : "▸", "aria-hidden": "true" }));
  node.addEventListener("click", () => app.toggleGroup(line.group));
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    app.toggleGroup(line.group);
  });
}

function pin(app, row) {
  const isPinned = app.pinned.has(row);
  const node = element("button", {
    cls: isPinned ? "pin on" : "pin",
    type: "button",
    text: isPinned ? "◆" : "◇",
    title: isPinned ? "Unpin this lane" : "Pin this lane to the top",
    "aria-pressed": String(isPinned),
  });
  node.addEventListener("click", () => app.togglePin(row));
  return node;
}

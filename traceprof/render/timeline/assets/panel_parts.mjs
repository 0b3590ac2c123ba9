import { element } from "./dom.mjs";
import { formatCount, formatDuration } from "./format.mjs";

/** The parts of a content as elements; `go` is called with the target of what was clicked. */

const LONG_LIST = 400;

export function partNode(part, go) {
  if (part.type === "note") return element("p", { cls: "note", text: part.text });
  if (part.type === "chart") return chartNode(part.chart);
  if (part.type === "choice") return choiceNode(part);
  if (part.type === "notes") return notesNode(part);
  return part.type === "facts" ? factsNode(part, go) : tableNode(part, go);
}

function factsNode({ caption, rows }, go) {
  const node = element("table", { cls: "facts" });
  if (caption) node.append(element("caption", { text: caption }));
  const body = node.createTBody();
  for (const { label, text, target } of rows) {
    const row = body.insertRow();
    row.append(element("th", { scope: "row", text: label }));
    row.insertCell().append(target ? linkNode(text, target, go) : element("span", { text, title: text }));
  }
  return node;
}

/**
 * The first `texts` columns are words (and with `isLastText` the last one), the others numbers. The
 * column `below` stands below the first, where there is little room.
 */
function tableNode({ caption, header, rows, texts = 1, isLastText = false, below = null, sort = null, about = [] }, go) {
  const isNumber = (i) => i >= texts && !(isLastText && i === header.length - 1);
  const node = element("table", { cls: "list" }, element("caption", { text: caption }));
  const head = node.createTHead().insertRow();
  header.forEach((text, i) => {
    if (i !== below) head.append(headNode(text, isNumber(i), sort?.[i], about[i]));
  });
  const body = node.createTBody();
  for (const { cells, target, isChosen, titles = cells } of rows.slice(0, LONG_LIST)) {
    const row = body.insertRow();
    if (isChosen) row.classList.add("chosen");
    cells.forEach((text, i) => {
      if (i === below) {
        row.cells[0].append(element("span", { cls: "cell note", text, title: text }));
        return;
      }
      const cell = row.insertCell();
      if (isNumber(i)) cell.className = "number";
      const isLink = i === 0 && target;
      cell.append(isLink ? linkNode(text, target, go, titles[i]) : element("span", { cls: "cell", text, title: text }));
    });
  }
  return element("div", { cls: "wide", tabindex: "0", role: "region", "aria-label": caption }, node);
}

function headNode(text, isNumber, onSort, title) {
  const node = element("th", { scope: "col", title });
  if (isNumber) node.className = "number";
  if (!onSort) node.textContent = text;
  else {
    const sorter = element("button", { type: "button", cls: "sort", text: onSort.isOn ? `${text} ▾` : text });
    if (onSort.isOn) node.setAttribute("aria-sort", onSort.direction);
    sorter.addEventListener("click", onSort.act);
    node.append(sorter);
  }
  return node;
}

function choiceNode({ caption, choices }) {
  const node = element("div", { cls: "choice", role: "group", "aria-label": caption }, element("span", { text: caption }));
  for (const { label, isOn, act } of choices) {
    const own = element("button", { type: "button", text: label, "aria-pressed": String(isOn) });
    own.addEventListener("click", act);
    node.append(own);
  }
  return node;
}

/** Each leads to its place, and can be taken away. */
function notesNode({ caption, rows }) {
  const node = element("table", { cls: "list notes" }, element("caption", { text: caption }));
  const body = node.createTBody();
  for (const { text, about, go, remove } of rows) {
    const row = body.insertRow();
    row.insertCell().append(linkNode(text, null, go));
    row.insertCell().append(element("span", { cls: "cell", text: about }));
    const away = element("button", { type: "button", cls: "goto", text: "×", "aria-label": `Remove note ${text}` });
    away.addEventListener("click", remove);
    row.insertCell().append(away);
  }
  return node;
}

function linkNode(text, target, go, title = text) {
  const node = element("button", { type: "button", cls: "goto", text, title });
  node.addEventListener("click", () => go(target));
  return node;
}

/** How the durations of a name are spread, and in which bin the chosen one is. */
function chartNode({ bins, binOf, own, isLog, min, max }) {
  const most = Math.max(...bins);
  const words = `${formatCount(bins.length)} bins from ${formatDuration(min)} to ${formatDuration(max)}`;
  const label = `Histogram of durations: ${words}${isLog ? ", logarithmic scale" : ""}; this event is in the marked bin`;
  const bars = element("div", { cls: "bars", role: "img", "aria-label": label });
  bins.forEach((count, i) => {
    const bar = element("i", { cls: i === binOf(own) ? "own" : "", title: `${formatCount(count)} events` });
    bar.style.height = count ? `${Math.max(4, (100 * count) / most).toFixed(1)}%` : "0";
    bars.append(bar);
  });
  const ends = element("div", { cls: "ends" }, element("span", { text: formatDuration(min) }));
  ends.append(element("span", { text: isLog ? "log scale" : "" }), element("span", { text: formatDuration(max) }));
  return element("figure", { cls: "spread" }, bars, ends);
}

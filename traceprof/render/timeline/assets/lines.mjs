/** Which lines the screen shows, top to bottom: sections, groups, and the rows of open groups. */

const SECTION_HEIGHT = 22;
const GROUP_HEIGHT = 22;
const ROW_HEIGHT = 18;
const NESTED_ROW_HEIGHT = 16;
const ROW_BUDGET = 30;
const MAX_OPEN_SECTIONS = 2;

const NESTED = new Set(["range", "host_op"]);

/**
 * The groups that are open at first: what a reader looks for, as far as it fits the screen. Of
 * many ranks only the first is open: the others show what their devices do in one line each.
 */
export function initiallyOpen(trace) {
  const open = new Set();
  let rows = 0;
  const add = (place) => {
    if (place === undefined || open.has(place)) return;
    const more = trace.groups[place].rows.length;
    if (rows > 0 && rows + more > ROW_BUDGET) return;
    open.add(place);
    rows += more;
  };
  const sections = [...groupBySection(trace.groups).values()];
  const kindOf = (place) => trace.groups[place].kind;
  const main = sections.filter((members) => members.some((place) => kindOf(place) !== "threads"));
  for (const members of main.length > MAX_OPEN_SECTIONS ? main.slice(0, 1) : main) {
    members.filter((place) => kindOf(place) === "device").slice(0, 2).forEach(add);
    add(members.find((place) => kindOf(place) === "thread"));
  }
  if (!open.size && trace.groups.length) open.add(0);
  return open;
}

function groupBySection(groups) {
  const sections = new Map();
  groups.forEach((group, place) => {
    if (!sections.has(group.section)) sections.set(group.section, []);
    sections.get(group.section).push(place);
  });
  return sections;
}

/** [{type, y, height, label, group?, row?}, …] and the total height in pixels. */
export function layoutLines(trace, open, pinned) {
  const lines = [];
  let y = 0;
  const push = (line, height) => {
    lines.push({ ...line, y, height });
    y += height;
  };
  if (pinned.size) {
    push({ type: "section", label: "Pinned" }, SECTION_HEIGHT);
    for (const row of pinned) push({ type: "row", row, label: pinnedLabel(trace, row) }, ROW_HEIGHT);
  }
  for (const [section, members] of groupBySection(trace.groups)) {
    push({ type: "section", label: section }, SECTION_HEIGHT);
    for (const place of members) {
      const group = trace.groups[place];
      push({ type: "group", group: place, label: group.label, isOpen: open.has(place) }, GROUP_HEIGHT);
      if (!open.has(place)) continue;
      for (const row of group.rows) {
        const { kind, label } = trace.rows[row];
        push({ type: "row", row, label: rowLabel(label, kind) }, NESTED.has(kind) ? NESTED_ROW_HEIGHT : ROW_HEIGHT);
      }
    }
  }
  return { lines, height: y };
}

/** Further lines of a lane carry a number only: a depth, or overlap where events should not nest. */
function rowLabel(label, kind) {
  if (!/^\d+$/.test(label)) return label;
  return NESTED.has(kind) ? `└ depth ${label}` : `└ overlap ${label}`;
}

function pinnedLabel(trace, row) {
  const { group, label, kind } = trace.rows[row];
  return `${trace.groups[group].label} · ${rowLabel(label, kind)}`;
}

/** The rows on the screen, each once. */
export function visibleRows(lines) {
  return [...new Set(lines.filter((line) => line.type === "row").map((line) => line.row))];
}

export function lineAt(lines, y) {
  return lines.find((line) => y >= line.y && y < line.y + line.height) ?? null;
}

export function lineOfRow(lines, row) {
  return lines.find((line) => line.type === "row" && line.row === row) ?? null;
}

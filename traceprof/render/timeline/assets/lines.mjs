import { stepsRows } from "./steps.mjs";

/** Which lines the screen shows, top to bottom: sections, groups, and the rows of open groups. */

const STEPS_HEIGHT = 20;
const SECTION_HEIGHT = 22;
const GROUP_HEIGHT = 22;
const ROW_HEIGHT = 18;
const NESTED_ROW_HEIGHT = 16;
const ROW_BUDGET = 30;
const PAIRED_ROW_BUDGET = 44;
const MAX_OPEN_SECTIONS = 2;
const MAX_WHOLE_SECTIONS = 4;
const FIRST_SCREEN_PX = 400; // what a screen of 1280 × 720 shows of the lanes

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
  if (trace.beside) return openPairs(trace, sections);
  for (const members of main.length > MAX_OPEN_SECTIONS ? main.slice(0, 1) : main) {
    members.filter((place) => kindOf(place) === "device").slice(0, 2).forEach(add);
    const thread = members.find((place) => kindOf(place) === "thread");
    add(thread);
    if (!isSecondDeviceShown(trace, open)) open.delete(thread);
  }
  if (!open.size && trace.groups.length) open.add(0);
  return open;
}

/** Whether the first screen has the second device, where there are two. */
function isSecondDeviceShown(trace, open) {
  const devices = layoutLines(trace, open, new Set()).lines.filter(({ group }) => trace.groups[group]?.kind === "device");
  return devices.length < 2 || devices[1].y + devices[1].height <= FIRST_SCREEN_PX;
}

/** What is held against one another is open on both sides or on none. */
function openPairs(trace, sections) {
  const open = new Set();
  let rows = 0;
  for (const members of sections) {
    const more = members.reduce((sum, place) => sum + trace.groups[place].rows.length, 0);
    if (rows > 0 && rows + more > PAIRED_ROW_BUDGET) continue;
    members.forEach((place) => open.add(place));
    rows += more;
  }
  return open;
}

function groupBySection(groups) {
  const sections = new Map();
  groups.forEach((group, place) => {
    if (group.kind === "steps") return;
    if (!sections.has(group.section)) sections.set(group.section, []);
    sections.get(group.section).push(place);
  });
  return sections;
}

/**
 * [{type, y, height, label, key, parent, group?, row?}, …] and the total height in pixels.
 * `parent` names the siblings among which a line can be moved. Of `lanes` (a LaneSet) come the
 * order and what is hidden. Of many ranks each takes one line per device until it is opened.
 */
export function layoutLines(trace, open, pinned, lanes = EVERYTHING) {
  const lines = [];
  let y = 0;
  const push = (line, height) => {
    lines.push({ ...line, y, height });
    y += height;
  };
  stepsRows(trace).forEach((row, i) => {
    push({ type: "row", row, label: trace.rows[row].label, key: i ? "steps-on-devices" : "steps" }, STEPS_HEIGHT);
  });
  if (pinned.size) {
    push({ type: "section", label: "Pinned", key: "pinned" }, SECTION_HEIGHT);
    for (const row of pinned) push({ type: "row", row, label: pinnedLabel(trace, row), key: `pinned${row}` }, ROW_HEIGHT);
  }
  const sections = shownSections(trace, lanes);
  const isFolded = foldsOf(trace, sections, (place) => open.has(place) || lanes.findsRows(place));
  for (const [section, shown] of lanes.sorted("", sections, ([name]) => name)) {
    const folded = isFolded(shown) ? foldedLines(trace, section, shown) : [];
    for (const line of folded) push(line, GROUP_HEIGHT);
    if (folded.length) continue;
    push({ type: "section", label: section, key: section, parent: "" }, SECTION_HEIGHT);
    for (const place of lanes.sorted(section, shown, (member) => groupKey(trace, member))) {
      const isOpen = open.has(place) || lanes.findsRows(place);
      const { label } = trace.groups[place];
      push({ type: "group", group: place, label, isOpen, key: groupKey(trace, place), parent: section }, GROUP_HEIGHT);
      if (!isOpen) continue;
      const rows = trace.groups[place].rows.filter((row) => lanes.showsRow(row));
      for (const row of lanes.sorted(groupKey(trace, place), rows, (own) => rowKey(trace, own))) {
        const { kind, label: own } = trace.rows[row];
        const line = { type: "row", row, label: rowLabel(own, kind), key: rowKey(trace, row), parent: groupKey(trace, place) };
        push(line, NESTED.has(kind) ? NESTED_ROW_HEIGHT : ROW_HEIGHT);
      }
    }
  }
  return { lines, height: y };
}

function shownSections(trace, lanes) {
  const isShown = (place) => lanes.showsGroup(place);
  const all = [...groupBySection(trace.groups)].map(([section, members]) => [section, members.filter(isShown)]);
  return all.filter(([, shown]) => shown.length);
}

/** Of many ranks those are folded of which nothing is open. */
function foldsOf(trace, sections, isOpen) {
  const withDevices = sections.filter(([, shown]) => devicesOf(trace, shown).length);
  const areMany = !trace.beside && withDevices.length > MAX_WHOLE_SECTIONS;
  return (shown) => areMany && !shown.some(isOpen);
}

/** A rank as one line for each of its devices; none where it has no device. */
function foldedLines(trace, section, shown) {
  const devices = devicesOf(trace, shown);
  return devices.map((place) => ({
    ...{ type: "group", group: place, isOpen: false, key: groupKey(trace, place), parent: "", sibling: section },
    label: devices.length > 1 ? `${section} · ${trace.groups[place].label}` : section,
  }));
}

const devicesOf = (trace, members) => members.filter((place) => trace.groups[place].kind === "device");

const EVERYTHING = { sorted: (_, items) => items, showsGroup: () => true, showsRow: () => true, findsRows: () => false };

/** Further lines of a lane carry a number only: a depth, or overlap where events should not nest. */
export function rowLabel(label, kind) {
  if (!/^\d+$/.test(label)) return label;
  return NESTED.has(kind) ? `└ depth ${label}` : `└ overlap ${label}`;
}

function pinnedLabel(trace, row) {
  const { group, label, kind } = trace.rows[row];
  return `${trace.groups[group].label} · ${rowLabel(label, kind)}`;
}

export const groupKey = (trace, place) => `${trace.groups[place].section}|${trace.groups[place].label}`;

export function rowKey(trace, row) {
  const { group } = trace.rows[row];
  return `${groupKey(trace, group)}|${row - trace.groups[group].rows[0]}`;
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

/** The line on which a target is drawn: its lane, or the line of its device; null where folded. */
export function lineOfTarget(lines, target) {
  if (!target) return null;
  if (target.group !== undefined) return lines.find((line) => line.type === "group" && line.group === target.group) ?? null;
  return lineOfRow(lines, target.row);
}

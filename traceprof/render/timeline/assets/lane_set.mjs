import { chartsFor } from "./scene.mjs";
import { groupKey, initiallyOpen, layoutLines, rowKey, rowLabel } from "./lines.mjs";
import { recall, remember } from "./storage.mjs";

/** Which lanes are shown, and in which order: what the reader folded, hid, pinned and moved. */

const LANES_KEY = "traceprof-lanes";
const MOST_PAGES = 20;
const SHORTEST_NAME = 3;
const MOST_OPEN_ROWS = 300;

/** What kinds of groups and rows are called. */
export const KINDS = [
  ["device", "GPUs"],
  ["thread", "Threads"],
  ["threads", "Other threads and processes"],
  ["range", "Ranges"],
  ["host_op", "Operators"],
  ["api", "CUDA API"],
  ["collective", "Collectives"],
  ["sync", "Synchronization"],
  ["mark", "Marks"],
  ["overhead", "Profiler overhead"],
];
const KIND_NAMES = new Map(KINDS);

export class LaneSet {
  constructor(trace) {
    this.trace = trace;
    this.first = [...initiallyOpen(trace)].sort((a, b) => a - b).join(".");
    this.open = initiallyOpen(trace);
    this.pinned = new Set();
    this.charts = chartsFor(trace);
    this.page = fingerprint(trace);
    this.arrange(this.kept);
  }

  /** What the reader set up on this page before. */
  get kept() {
    const { hidden = [], order = {} } = recall(LANES_KEY, {})[this.page] ?? {};
    return { hidden: new Set(hidden), order, kinds: new Set(), filter: "" };
  }

  arrange({ hidden, order, kinds, filter }) {
    Object.assign(this, { hidden, order, kinds, filter });
  }

  /** The charts that are shown. */
  get shownCharts() {
    return this.charts.filter(({ key }) => !this.hidden.has(key));
  }

  /** {lines, height}, as layoutLines gives them. */
  layout() {
    this.words = this.filter.toLowerCase().split(/[\s,]+/).filter(Boolean);
    return layoutLines(this.trace, this.open, this.pinned, this);
  }

  get folds() {
    const now = [...this.open].sort((a, b) => a - b).join(".");
    return now === this.first ? null : now;
  }

  setFolds(text) {
    const asked = (text ?? this.first).split(".").filter(Boolean).map(Number);
    this.open = new Set(asked.filter((group) => this.trace.groups[group]));
  }

  openAll() {
    let rows = 0;
    this.trace.groups.forEach((group, place) => {
      rows += group.rows.length;
      if (rows <= MOST_OPEN_ROWS && group.kind !== "steps") this.open.add(place);
    });
  }

  /** Whether a group is shown: what is looked for by filter is in its name or in that of a lane. */
  showsGroup(place) {
    const { section, kind, rows } = this.trace.groups[place];
    if (this.hidden.has(section) || this.hidden.has(groupKey(this.trace, place)) || this.kinds.has(kind)) return false;
    return !this.findsRows(place) || rows.some((row) => this.isFoundRow(row));
  }

  showsRow(row) {
    if (this.kinds.has(this.trace.rows[row].kind) || this.hidden.has(rowKey(this.trace, row))) return false;
    return !this.findsRows(this.trace.rows[row].group) || this.isFoundRow(row);
  }

  /** Whether only some lanes of a group may be what is looked for: it shows these. */
  findsRows(place) {
    return this.words.length > 0 && !isFound(this.textOf(place), this.words);
  }

  isFoundRow(row) {
    const { group, kind, label } = this.trace.rows[row];
    const text = `${KIND_NAMES.get(kind) ?? ""} ${rowLabel(label, kind)} `.toLowerCase();
    return isFound(this.textOf(group) + text, this.words);
  }

  /** The groups of a rank, a host or a device that a text names: one of each section, its device. */
  groupsNamed(text) {
    const words = text.toLowerCase().split(/[\s,]+/).filter(Boolean);
    if (text.trim().length < SHORTEST_NAME) return [];
    const sections = new Map();
    this.trace.groups.forEach(({ kind, section }, place) => {
      if (kind === "steps" || !isFound(this.textOf(place), words)) return;
      const isFirstDevice = kind === "device" && this.trace.groups[sections.get(section)]?.kind !== "device";
      if (isFirstDevice || !sections.has(section)) sections.set(section, place);
    });
    return [...sections.values()];
  }

  textOf(place) {
    const { section, label, process } = this.trace.groups[place];
    return `${section} ${this.trace.processes?.[process]?.host ?? ""} ${label} `.toLowerCase();
  }

  /** Show a group, and a row of it, whatever was hidden: the reader goes there. */
  reveal(place, row = null) {
    const { section, kind } = this.trace.groups[place];
    for (const key of [section, groupKey(this.trace, place)]) this.hidden.delete(key);
    this.kinds.delete(kind);
    if (row !== null) {
      this.hidden.delete(rowKey(this.trace, row));
      this.kinds.delete(this.trace.rows[row].kind);
    }
    if (this.findsRows(place) && !(row !== null && this.isFoundRow(row))) this.filter = "";
  }

  /** `items` in the order that the reader gave to the siblings under `parent`. */
  sorted(parent, items, keyOf) {
    const order = this.order[parent];
    if (!order) return items;
    const place = (item) => (order.includes(keyOf(item)) ? order.indexOf(keyOf(item)) : order.length + items.indexOf(item));
    return [...items].sort((a, b) => place(a) - place(b));
  }

  /** Put `key` where its sibling `target` is. */
  move(parent, siblings, key, target) {
    const order = siblings.filter((other) => other !== key);
    const isDown = siblings.indexOf(target) > siblings.indexOf(key);
    order.splice(order.indexOf(target) + (isDown ? 1 : 0), 0, key);
    this.order[parent] = order;
    this.keep();
  }

  hide(key) {
    this.hidden.add(key);
    this.keep();
  }

  show(key) {
    this.hidden.delete(key);
    this.keep();
  }

  showHidden() {
    this.hidden.clear();
    this.kinds.clear();
    this.filter = "";
    this.keep();
  }

  originalOrder() {
    this.order = {};
    this.keep();
  }

  keep() {
    const pages = Object.entries(recall(LANES_KEY, {})).filter(([page]) => page !== this.page);
    const own = { order: this.order, hidden: [...this.hidden] };
    remember(LANES_KEY, Object.fromEntries([...pages.slice(1 - MOST_PAGES), [this.page, own]]));
  }
}

/** "rank 1" is not in "rank 12": a word is found from where a word begins, a number as a whole. */
function isFound(text, words) {
  return words.every((word, i) => {
    const number = /^\d+$/.test(word);
    if (number && i > 0) return text.includes(`${words[i - 1]} ${word} `) || text.includes(`${words[i - 1]}${word} `);
    return text.includes(word);
  });
}

/** The lines of a page under one number, so that pages of one run share what was set up. */
function fingerprint({ groups }) {
  let hash = 0;
  for (const character of groups.map(({ section, label }) => `${section}|${label}`).join("\n")) {
    hash = (Math.imul(hash, 31) + character.codePointAt(0)) | 0;
  }
  return String(hash >>> 0);
}

import { groupKey, rowKey } from "./lines.mjs";

/**
 * How lanes are arranged, as words of an address: `hide` (lanes and charts), `order`, `kinds` and
 * `filter`; `off` are the categories that the legend has switched off. Keys of lines, which are
 * names, become numbers: S, G, R and C for sections, groups, rows and charts.
 */

const TOP = "T";

/** The words of what is arranged: [[name, text], …]. */
export function wordsOfLanes(trace, { hidden, order, kinds, filter, charts }, off) {
  const refs = referencesOf(trace, charts);
  const named = (keys) => keys.map((key) => refs.get(key)).filter(Boolean).join(".");
  const orders = Object.entries(order).map(([parent, keys]) => `${parent ? refs.get(parent) : TOP}:${named(keys)}`);
  return [
    ["hide", named([...hidden]) || "none"],
    ["order", orders.filter((text) => !text.startsWith("undefined")).join("|")],
    ["kinds", [...kinds].join(".")],
    ["filter", filter ? encodeURIComponent(filter) : ""],
    ["off", [...off].map((category) => trace.categories[category].key).join(".")],
  ];
}

/** What the words of an address (URLSearchParams) arrange: {hidden, order, kinds, filter, off}; or null. */
export function lanesOfWords(trace, charts, given) {
  if (!given.has("hide")) return null;
  const keys = new Map([...referencesOf(trace, charts)].map(([key, ref]) => [ref, key]));
  const partsOf = (text, by) => (text ?? "").split(by).filter(Boolean);
  const keysOf = (text) => partsOf(text, ".").map((ref) => keys.get(ref)).filter(Boolean);
  const orders = partsOf(given.get("order"), "|").map((part) => part.split(":"));
  const known = orders.filter(([parent]) => parent === TOP || keys.has(parent));
  const off = new Set(partsOf(given.get("off"), "."));
  return {
    hidden: new Set(keysOf(given.get("hide"))),
    order: Object.fromEntries(known.map(([parent, of]) => [keys.get(parent) ?? "", keysOf(of)])),
    kinds: new Set(partsOf(given.get("kinds"), ".").filter((kind) => /^[a-z_]{1,20}$/.test(kind))),
    filter: (given.get("filter") ?? "").slice(0, 200),
    off: new Set(trace.categories.flatMap(({ key }, category) => (off.has(key) ? [category] : []))),
  };
}

/** Map(key of a line → its number). */
function referencesOf(trace, charts) {
  const refs = new Map();
  const add = (key, ref) => refs.has(key) || refs.set(key, ref);
  trace.groups.forEach(({ section, rows }, place) => {
    add(section, `S${place}`);
    add(groupKey(trace, place), `G${place}`);
    for (const row of rows) add(rowKey(trace, row), `R${row}`);
  });
  charts.forEach(({ key }, place) => add(key, `C${place}`));
  return refs;
}

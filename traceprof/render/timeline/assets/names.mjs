import { unzigzag } from "./columns.mjs";

/** Names that `encode.py` wrote: templates, the numbers in them, and how they are shown (`shown_names.py`). */

const PLACE = "\u0001";

/**
 * {names, shorts, alikes, templates, merged}: the names, their short forms, what is one and the same
 * when names are put together, the template of each (null for a slice, which has none),
 * and of a page with merged items how many events of each name are in those: {counts, ns}.
 */
export function readNames(streams, { name_templates: texts, n_names: n, shown_names: shown }) {
  if (!n) return { names: [], shorts: [], alikes: [], templates: null, merged: null };
  const templates = streams.numbers("names.template");
  const names = new Array(n);
  const members = texts.map(() => []);
  templates.forEach((template, name) => members[template].push(name));
  const numbers = streams.numbers("names.number");
  let at = 0;
  texts.forEach((text, template) => {
    const [begin, ...parts] = text.split(PLACE);
    const places = members[template];
    for (const name of places) names[name] = begin;
    for (const part of parts) {
      let number = 0;
      for (const name of places) names[name] += (number += unzigzag(numbers[at++])) + part;
    }
  });
  const counts = streams.numbers("names.merged_count");
  const merged = counts.length ? { counts, ns: streams.numbers("names.merged_ns") } : null;
  const shownAs = (stream, otherwise) =>
    Array.from(streams.numbers(stream, templates), (code, name) => (code ? shown[code - 1] : otherwise[name]));
  const shorts = shownAs("names.short", names);
  return { names, shorts, alikes: shownAs("names.alike", shorts), templates, merged };
}

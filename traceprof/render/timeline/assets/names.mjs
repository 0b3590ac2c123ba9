import { unzigzag } from "./columns.mjs";

/** Names that `names.py` wrote: templates, and the numbers in them. */

const PLACE = "\u0001";

/**
 * {names, templates, merged}: the names, the template of each (null for a slice, which has none),
 * and of a page with merged items how many events of each name are in those: {counts, ns}.
 */
export function readNames(streams, { name_templates: texts, n_names: n }) {
  if (!n) return { names: [], templates: null, merged: null };
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
  return { names, templates, merged };
}

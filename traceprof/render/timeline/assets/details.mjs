import { element, table } from "./dom.mjs";
import { eventFacts, linkFacts } from "./facts.mjs";
import { formatBytes, formatCount, formatDuration, formatPercent } from "./format.mjs";
import { sumSpan } from "./query.mjs";

/** Below the lanes: the chosen event, or what a selected span adds up to. */

export function showEvent(app, node, event) {
  const { trace } = app;
  const { name, facts } = eventFacts(trace, event);
  const { group, label } = trace.rows[event.row];
  const { section, label: groupLabel } = trace.groups[group];
  const lane = ["lane", [section, groupLabel, label].join(" › ")];
  const rows = [...facts, lane, ...linkFacts(trace, event).facts];
  node.replaceChildren(element("div", {}, element("h3", { text: name }), table("Chosen event", ["", ""], rows)));
}

export function showSpan(app, node, [t0, t1]) {
  const { trace } = app;
  const device = rowsOfKind(trace, (kind) => kind === "gpu");
  const host = rowsOfKind(trace, (kind) => kind !== "gpu");
  const title = element("h3", { text: `Selection of ${formatDuration(t1 - t0)}` });
  const parts = [...spanTables(trace, "Devices", device, t0, t1), ...spanTables(trace, "Host", host, t0, t1)];
  node.replaceChildren(title, ...parts);
}

function rowsOfKind(trace, isWanted) {
  return trace.rows.map((_, row) => row).filter((row) => isWanted(trace.rows[row].kind));
}

function spanTables(trace, label, rows, t0, t1) {
  const { categories, count, top } = sumSpan(trace, rows, t0, t1);
  if (!count) return [];
  const byCategory = [...categories].sort((a, b) => b[1].ns - a[1].ns);
  // Lanes of the host nest: what they add up to is not a share of anything.
  const isDevice = label === "Devices";
  const share = (sum) => (isDevice ? [formatPercent(sum.ns / (t1 - t0))] : []);
  const size = (sum) => (isDevice ? [sum.bytes ? formatBytes(sum.bytes) : "–"] : []);
  return [
    table(
      `${label}: time by kind, summed over lanes`,
      ["Kind", "Time", ...(isDevice ? ["Of the span"] : []), "Events", ...(isDevice ? ["Bytes"] : [])],
      byCategory.map(([category, sum]) => [
        trace.categories[category].label,
        formatDuration(sum.ns),
        ...share(sum),
        formatCount(sum.count),
        ...size(sum),
      ]),
    ),
    table(
      `${label}: names that take most time`,
      ["Name", "Time", "Events"],
      top.map((entry) => [entry.name, formatDuration(entry.ns), formatCount(entry.count)]),
    ),
  ];
}

import { CHART_GAP, CHART_HEIGHT } from "./figure.mjs";
import { eventFacts, linkFacts } from "./facts.mjs";
import { formatCount, formatInstant, formatPercent } from "./format.mjs";
import { countInside, pickEvent, sumSpan } from "./query.mjs";
import { element } from "./dom.mjs";
import { axisInstant } from "./step_ticks.mjs";
import { lineAt } from "./lines.mjs";

/** What the pointer is over, in words. Returns {title, facts} or null. */
export function describePoint(app, x, y) {
  const line = lineAt(app.lines, y);
  if (line?.type === "row") return describeRowPoint(app, line.row, x);
  if (line?.type === "group") return describeGroupPoint(app, line, x);
  return y > app.height ? describeChartPoint(app, x, y) : null;
}

function describeRowPoint(app, row, x) {
  const { trace, binNs } = app;
  const t = app.timeAt(x);
  const { items, events } = countInside(trace, row, t - binNs / 2, t + binNs / 2);
  if (items > 2) return describeCrowd(app, row, t, events);
  const event = pickEvent(trace, row, t, 1.5 * binNs);
  if (!event) return null;
  const { name, facts } = eventFacts(trace, event);
  return { title: name, facts: [...facts, ...linkFacts(trace, event).facts] };
}

function describeCrowd({ trace, binNs }, row, t, count) {
  const { categories, top } = sumSpan(trace, [row], t - binNs / 2, t + binNs / 2);
  const facts = [...categories].map(([category, sum]) => [
    trace.categories[category].label,
    `${formatPercent(sum.ns / binNs)} busy · ${formatCount(sum.count)} events`,
  ]);
  if (top.length) facts.push(["longest total", top[0].name]);
  facts.push(["", "zoom in to see each event"]);
  return { title: `${formatCount(count)} events in this pixel`, facts };
}

function describeGroupPoint(app, line, x) {
  const { trace, binNs } = app;
  const group = trace.groups[line.group];
  if (!group.states) return null;
  const t = app.timeAt(x);
  const facts = group.states.channels
    .map((channel) => [channel.category, stateShare(channel, t - binNs, t + binNs)])
    .filter(([, ratio]) => ratio > 0)
    .sort((a, b) => b[1] - a[1])
    .map(([category, ratio]) => [trace.categories[category].label, formatPercent(ratio)]);
  return facts.length ? { title: line.label, facts } : null;
}

function stateShare({ starts, ends, busy, n }, t0, t1) {
  let sum = 0;
  let low = 0;
  let high = n;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (ends[middle] <= t0) low = middle + 1;
    else high = middle;
  }
  for (let i = low; i < n && starts[i] < t1; i++) {
    const inside = Math.min(ends[i], t1) - Math.max(starts[i], t0);
    sum += busy ? (inside * busy[i]) / (ends[i] - starts[i]) : inside;
  }
  return sum / (t1 - t0);
}

function describeChartPoint(app, x, y) {
  const { areas, charts, trace } = app;
  const chart = charts[Math.floor((y - app.height) / (CHART_HEIGHT + CHART_GAP))];
  const bin = Math.floor((app.timeAt(x) - areas.t0) / areas.binNs);
  if (!chart || bin < 0 || bin >= areas.nBins) return null;
  const t = app.timeAt(x);
  const at = trace.beside ? axisInstant(trace, t) : formatInstant(t + trace.offset_ns, app.t1 - app.t0);
  const facts = chart.facts
    ? chart.facts(app.timeAt(x))
    : [...chart.values(areas)].map(([category, values]) => [
        trace.categories[category].label,
        chart.format(values[bin]),
      ]);
  return facts.length ? { title: `${chart.title} at ${at}`, facts } : null;
}

/** The box that follows the pointer. */
export class Tooltip {
  constructor() {
    this.node = element("div", { cls: "tip", role: "tooltip" });
    document.body.append(this.node);
  }

  hide() {
    this.node.style.display = "none";
  }

  show(point, clientX, clientY) {
    if (!point) return this.hide();
    this.node.textContent = "";
    this.node.append(element("b", { text: point.title }));
    for (const [label, text] of point.facts) {
      this.node.append(element("div", { cls: "fact" }, element("span", { text: label }), element("span", { text })));
    }
    this.node.style.display = "block";
    const { width, height } = this.node.getBoundingClientRect();
    const below = clientY + 18 + height <= innerHeight;
    this.node.style.left = `${Math.max(4, Math.min(innerWidth - width - 8, clientX + 14))}px`;
    this.node.style.top = `${Math.max(4, below ? clientY + 18 : clientY - height - 12)}px`;
    return undefined;
  }
}

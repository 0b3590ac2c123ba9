import { bandwidth, occupancyByCategory } from "./occupancy.mjs";
import { withAlpha } from "./color.mjs";

/** The charts below the lanes, on the same axis: what the devices do, and how fast they copy. */

const MAX_BINS = 360;

const deviceGroups = (trace) => trace.groups.filter((group) => group.kind === "device");

/** Of each recording: the mean state over its devices, per category, and GB/s per category of copy. */
export function measureAreas(trace, t0, t1, width) {
  const nBins = Math.max(1, Math.min(MAX_BINS, Math.floor(width / 4)));
  const binNs = (t1 - t0) / nBins;
  const sides = (trace.beside?.sides ?? [null]).map((_, side) => {
    const groups = deviceGroups(trace).filter((group) => !trace.beside || group.side === side);
    const channels = groups.flatMap((g) => g.rows.flatMap((row) => trace.rows[row].channels));
    return { busy: meanStates(groups, t0, binNs, nBins, trace.not_recorded), rates: bandwidth(channels, t0, binNs, nBins) };
  });
  return { t0, binNs, nBins, sides };
}

/** Map(category → ratio per bin), the mean over the device groups, as far as they were recorded. */
export function meanStates(groups, t0, binNs, nBins, notRecorded) {
  const found = occupancyByCategory(groups.flatMap((g) => g.states?.channels ?? []), t0, binNs, nBins);
  const unknown = found.get(notRecorded);
  for (const [category, ratios] of found) {
    const of = (k) => groups.length - (category === notRecorded || !unknown ? 0 : unknown[k]);
    for (let k = 0; k < nBins; k++) ratios[k] = ratios[k] > 0 ? ratios[k] / of(k) : 0;
  }
  return found;
}

/** Plotly traces of the measured areas; `hidden` categories are left out. */
export function areaTraces(trace, areas, { charts, colors, hidden }) {
  if (!areas) return [];
  const idle = trace.states.at(-1);
  const x = edges(areas);
  return charts.filter(({ what }) => what).flatMap(({ what, side, axis }) => {
    const found = areas.sides[side][what];
    const y = axis.replace("axis", "");
    if (what === "busy") {
      const states = trace.states.filter((c) => c !== idle && found.has(c) && !hidden.has(c));
      return stackTraces(states.map((c) => [c, found.get(c)]), x, colors, 100, y);
    }
    return [...found].filter(([c]) => !hidden.has(c)).map(([category, rates]) => ({
      ...lineTrace(x, steps(rates), colors[category], 1.3, y),
      fill: "tozeroy",
      fillcolor: withAlpha(colors[category], 0.18),
    }));
  });
}

/** Stacked areas: each on top of the ones before it. */
export function stackTraces(layers, x, colors, scale, yaxis) {
  let below = null;
  return layers.map(([category, values]) => {
    const sum = Float64Array.from(values, (value, k) => value * scale + (below ? below[k] : 0));
    const trace = {
      ...lineTrace(x, steps(sum), colors[category], 0, yaxis),
      fill: below ? "tonexty" : "tozeroy",
      fillcolor: withAlpha(colors[category], 0.78),
    };
    below = sum;
    return trace;
  });
}

const lineTrace = (x, y, color, width, yaxis) => ({
  type: "scatter",
  x,
  y,
  yaxis,
  mode: "lines",
  line: { width, color, simplify: false },
  hoverinfo: "skip",
  showlegend: false,
});

/** Both edges of every bin, for a curve made of steps. */
export function edges({ t0, binNs, nBins }) {
  const x = new Float64Array(2 * nBins);
  for (let k = 0; k < nBins; k++) {
    x[2 * k] = t0 + k * binNs;
    x[2 * k + 1] = t0 + (k + 1) * binNs;
  }
  return x;
}

function steps(values) {
  const y = new Float64Array(2 * values.length);
  values.forEach((value, k) => {
    y[2 * k] = y[2 * k + 1] = value;
  });
  return y;
}

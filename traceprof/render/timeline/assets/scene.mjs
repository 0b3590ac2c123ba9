import { findLongest } from "./longest.mjs";
import { formatCount, formatDuration, formatInstant, formatPercent, makeTicks } from "./format.mjs";
import { measureAreas } from "./areas.mjs";
import { stepTicks } from "./step_ticks.mjs";
import { viewName } from "./beside.mjs";
import { sampleCharts } from "./samples.mjs";
import { toPixel } from "./color.mjs";
import { visibleRows } from "./lines.mjs";
import { boxShapes } from "./boxes.mjs";
import { areStepsApart } from "./figure.mjs";
import { linesWithin } from "./band.mjs";
import { lowerBound } from "./bisect.mjs";

/** A scene: all that one picture needs, computed for the span and the width of the view. */

export const BOX_MIN_PX = 2.5;
export const MAX_BOXES = 2500;

export function makeScene(app) {
  const { trace, t0, t1, band, hidden, matches, lit, colors, theme, chosen, partner, width } = app;
  const lines = linesWithin(app.lines, band);
  const height = band.bottom - band.top;
  const charts = band.bottom < app.height ? [] : app.charts;
  const binNs = (t1 - t0) / width;
  const minNs = Math.max(1, BOX_MIN_PX * binNs);
  const longest = findLongest(trace.rows, visibleRows(lines), { t0, t1, minNs, limit: MAX_BOXES });
  const scene = {
    ...{ trace, t0, t1, lines, height, hidden, matches, lit, colors, theme, charts, chosen, partner },
    width,
    binNs,
    top: band.top,
    boxes: longest.byRow,
    boxCount: longest.count,
    pixels: colors.map(toPixel),
    hitPixel: toPixel(theme.hit) | (255 << 24),
    hitColor: theme.hit,
    areas: charts.length ? measureAreas(trace, t0, t1, width) : null,
    ticks: trace.beside ? stepTicks(trace, t0, t1, width) : makeTicks(t0, t1, width, trace.offset_ns),
  };
  scene.drawn = boxShapes(scene);
  return scene;
}

const chartKey = (title) => `chart|${title}`;

/** The charts that this trace has anything for; of two recordings each its own. */
export function chartsFor(trace) {
  const isShown = ([category]) => category !== trace.states.at(-1);
  const sides = trace.beside?.sides ?? [{ name: "" }];
  const isOf = (group, side) => !trace.beside || trace.groups[group].side === side;
  const hasDevice = (side) => trace.groups.some(({ kind }, group) => kind === "device" && isOf(group, side));
  const hasBytes = (side) =>
    trace.rows.some(({ kind, channels, group }) => kind === "gpu" && isOf(group, side) && channels.some(({ bytes }) => bytes));
  const busy = { what: "busy", title: "GPU busy %", range: [0, 100], format: formatPercent };
  const rates = { what: "rates", title: "Copy rate GB/s", format: (rate) => `${rate.toFixed(2)} GB/s` };
  const found = [[busy, hasDevice], [rates, hasBytes]].flatMap(([chart, has]) =>
    sides.flatMap(({ name }, side) => (has(side) ? [{ ...chart, side, title: (name && `${name}: `) + chart.title }] : [])),
  );
  const charts = found.map((chart, i) => ({
    ...chart,
    axis: `yaxis${2 + i}`,
    key: chartKey(chart.title),
    values: (areas) => [...areas.sides[chart.side][chart.what]].filter((entry) => chart.what !== "busy" || isShown(entry)),
  }));
  const sampled = sampleCharts(trace, 2 + charts.length);
  return [...charts, ...sampled.map((chart) => ({ ...chart, key: chartKey(chart.metric) }))];
}

/** What is on the screen, and how much of the trace that is. */
export function drawnText({ trace, t0, t1, boxes, width }) {
  const span = `${formatDuration(t1 - t0)} starting at ${formatInstant(t0 + trace.offset_ns, t1 - t0)}`;
  const view = trace.beside ? viewName(trace, t0, t1) : span;
  // Steps have lanes, and are no events of the recording.
  const drawn = [...boxes].reduce((sum, [row, items]) => sum + (trace.rows[row].kind === "step" ? 0 : items.length), 0);
  const events = `${formatCount(drawn)} of ${formatCount(trace.n_events)} events drawn as boxes, the rest as density`;
  const counts = trace.merged?.counts ?? [];
  const merged = counts.reduce((sum, count) => sum + count, 0);
  const parts = merged ? [`${formatCount(merged)} short events are merged in this file: use traceprof view to see each one`] : [];
  const { starts } = trace.steps;
  const inView = lowerBound(starts, t1) - lowerBound(starts, t0);
  const isThinned = inView && !areStepsApart(inView, width);
  const steps = isThinned ? [`${formatCount(inView)} steps, marked only in the step lane`] : [];
  return [view, events, ...parts, ...steps].join(" · ");
}

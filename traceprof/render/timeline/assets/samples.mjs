import { lowerBound, upperBound } from "./bisect.mjs";
import { formatBytes, formatNumber } from "./format.mjs";

/** Time series: one chart per metric, one line per source. */

const LINE_CATEGORIES = ["compute", "communication", "h2d", "d2d", "memset", "d2h", "p2p", "overlap"];

export function sampleCharts(trace, firstAxis) {
  const metrics = [...new Set(trace.samples.map((series) => series.metric))];
  return metrics.map((metric, i) => ({
    axis: `yaxis${firstAxis + i}`,
    metric,
    title: metricTitle(metric),
    facts: (t) => trace.samples.filter((s) => s.metric === metric).map((s) => [s.source || metric, valueAt(s, t)]),
  }));
}

/** What heads the chart: "torch allocated, bytes"; names without such a unit are as they were given. */
function metricTitle(metric) {
  const named = /^(.+)_bytes(_per_s)?$/.exec(metric);
  return named ? `${named[1].replaceAll("_", " ")}, bytes${named[2] ? "/s" : ""}` : metric;
}

/** The last value at or before `t`, in words; the unit is the end of the metric's name. */
function valueAt({ metric, times, values }, t) {
  const i = upperBound(times, t) - 1;
  if (i < 0 || Number.isNaN(values[i])) return "–";
  if (metric.endsWith("_bytes")) return formatBytes(values[i]);
  if (metric.endsWith("_bytes_per_s")) return `${formatBytes(values[i])}/s`;
  return formatNumber(values[i]);
}

export function sampleTraces(scene) {
  const { trace, charts, colors } = scene;
  const traces = [];
  for (const { axis, metric } of charts.filter((chart) => chart.facts)) {
    const own = trace.samples.filter((series) => series.metric === metric);
    own.forEach((series, i) => {
      const key = LINE_CATEGORIES[i % LINE_CATEGORIES.length];
      const color = colors[trace.categories.findIndex((category) => category.key === key)];
      traces.push({ ...visiblePart(series, scene), ...lineStyle(axis, color) });
    });
  }
  return traces;
}

const lineStyle = (axis, color) => ({
  type: "scatter",
  yaxis: axis.replace("axis", ""),
  mode: "lines",
  line: { width: 1.3, color, shape: "hv", simplify: false },
  hoverinfo: "skip",
  showlegend: false,
});

/** The points inside the view and one on either side; of each pixel at most the two extremes. */
function visiblePart({ times, values }, { t0, t1, width }) {
  const first = Math.max(0, lowerBound(times, t0) - 1);
  const last = Math.min(times.length, upperBound(times, t1) + 1);
  const stride = Math.max(1, Math.ceil((last - first) / width));
  const x = [];
  const y = [];
  for (let i = first; i < last; i += stride) {
    const end = Math.min(last, i + stride);
    let [low, high] = [i, i];
    for (let k = i; k < end; k++) {
      if (values[k] < values[low]) low = k;
      if (values[k] > values[high]) high = k;
    }
    for (const k of low === high ? [low] : [Math.min(low, high), Math.max(low, high)]) {
      x.push(times[k]);
      y.push(values[k]);
    }
  }
  return { x, y };
}

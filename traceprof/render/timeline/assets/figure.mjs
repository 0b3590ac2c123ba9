import { lowerBound } from "./bisect.mjs";
import { areaTraces } from "./areas.mjs";
import { boxOf, boxTraces } from "./boxes.mjs";
import { sampleTraces } from "./samples.mjs";

/** The plotly figure of one view: boxes and labels over the raster, charts below, marks above. */

export const MARGIN = { top: 26, right: 14, bottom: 10 };
export const CHART_HEIGHT = 84;
export const CHART_GAP = 16;
const STEP_BORDER_PX = 6;

/** Heights in pixels: lanes, then the charts that there is anything for. */
export function figureHeights({ height, charts }) {
  const plot = plotHeight(height, charts);
  return { plot, total: plot + MARGIN.top + MARGIN.bottom };
}

export const plotHeight = (height, charts) => height + charts.length * (CHART_HEIGHT + CHART_GAP);

export function makeFigure(scene) {
  return { data: makeTraces(scene), layout: makeLayout(scene) };
}

function makeTraces(scene) {
  const anchor = { type: "scatter", x: [], y: [], hoverinfo: "skip", showlegend: false };
  return [anchor, ...boxTraces(scene), ...areaTraces(scene.trace, scene.areas, scene), ...sampleTraces(scene)];
}

function makeLayout(scene) {
  const { t0, t1, theme, ticks } = scene;
  const { plot, total } = figureHeights(scene);
  const flow = flowMarks(scene);
  return {
    width: scene.width + MARGIN.right,
    height: total,
    margin: { l: 0, r: MARGIN.right, t: MARGIN.top, b: MARGIN.bottom },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    hovermode: false,
    dragmode: false,
    font: { size: 11, color: theme.muted, family: theme.font },
    xaxis: {
      range: [t0, t1],
      tickmode: "array",
      tickvals: ticks.values,
      ticktext: ticks.labels,
      tickangle: 0,
      ticklen: 3,
      tickcolor: theme.line,
      side: "top",
      anchor: "y",
      showgrid: false,
      zeroline: false,
      fixedrange: true,
    },
    yaxis: {
      range: [scene.height, 0],
      domain: domain(0, scene.height, plot),
      visible: false,
      fixedrange: true,
    },
    ...chartAxes(scene, plot),
    shapes: [...stepBorders(scene), ...flow.shapes],
    annotations: flow.annotations,
  };
}

const domain = (y, height, plot) => [Math.max(0, 1 - (y + height) / plot), 1 - y / plot];

function chartAxes(scene, plot) {
  const axes = {};
  scene.charts.forEach(({ axis, range }, i) => {
    const top = scene.height + CHART_GAP + i * (CHART_HEIGHT + CHART_GAP);
    axes[axis] = {
      ...(range ? { range } : { rangemode: "tozero" }),
      domain: domain(top, CHART_HEIGHT, plot),
      anchor: "x",
      side: "right",
      nticks: 3,
      exponentformat: "SI",
      gridcolor: scene.theme.line,
      zeroline: false,
      fixedrange: true,
      tickfont: { size: 9, color: scene.theme.muted },
      ticklabelposition: "inside",
    };
  });
  return axes;
}

/** The borders of the steps over all lanes, as one path; too close they would hide the lanes. */
function stepBorders(scene) {
  const { starts } = scene.trace.steps;
  const { t0, t1, width, theme } = scene;
  const first = lowerBound(starts, t0);
  const last = lowerBound(starts, t1);
  if (first === last || !areStepsApart(last - first, width)) return [];
  const path = starts.slice(first, last).map((start) => `M${start},0L${start},1`).join("");
  return [{ type: "path", path, yref: "paper", line: { color: theme.step, width: 1, dash: "dot" }, layer: "above" }];
}

/** Whether `count` steps on so many pixels get a border over the lanes. */
export const areStepsApart = (count, width) => count * STEP_BORDER_PX <= width;

/** The frame of the chosen event and the arrow between a launch and what it launched. */
function flowMarks(scene) {
  const { chosen, partner, theme } = scene;
  const box = chosen && boxOf(scene, chosen);
  if (!box) return { shapes: [], annotations: [] };
  const shapes = [frame(box, theme.ink, 1.6, "solid")];
  const other = partner && boxOf(scene, partner);
  if (!other) return { shapes, annotations: [] };
  shapes.push(frame(other, theme.ink, 1.2, "dot"));
  const isLaunch = scene.trace.rows[chosen.row].kind === "api";
  const [from, to] = isLaunch ? [box, other] : [other, box];
  const down = to.y0 > from.y0;
  const arrow = {
    x: to.x0,
    y: down ? to.y0 : to.y1,
    ax: (from.x0 + from.x1) / 2,
    ay: down ? from.y1 : from.y0,
    axref: "x",
    ayref: "y",
    xref: "x",
    yref: "y",
    showarrow: true,
    arrowhead: 2,
    arrowsize: 1.1,
    arrowwidth: 1.4,
    arrowcolor: theme.ink,
    text: "",
  };
  return { shapes, annotations: [arrow] };
}

const frame = ({ x0, x1, y0, y1 }, color, width, dash) => ({
  type: "rect",
  x0,
  x1,
  y0,
  y1,
  line: { color, width, dash },
  layer: "above",
});

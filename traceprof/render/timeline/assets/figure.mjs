import { lowerBound } from "./bisect.mjs";
import { areaTraces } from "./areas.mjs";
import { boxOf, boxTraces } from "./boxes.mjs";
import { roundUp } from "./format.mjs";
import { sampleTraces } from "./samples.mjs";

/**
 * The plotly figure of a view. On the page it has the axes, and the canvas below draws what lies on
 * them; a picture that is saved has all of it as plotly traces and shapes.
 */

export const MARGIN = { top: 26, right: 40, bottom: 10 };
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
  const curves = curvesOf(scene);
  const { borders, frames, arrow } = marksOf(scene);
  const shapes = [...borderShape(borders, scene.theme), ...frames.map((frame) => frameShape(frame, scene.theme))];
  const layout = { ...makeLayout(scene, curves), shapes, annotations: arrow ? [arrowNote(arrow, scene.theme)] : [] };
  return { data: [anchor("y"), ...boxTraces(scene), ...curves], layout };
}

/** What stays on the page: the axes alone, each held by a trace without points. */
export function makeAxes(scene) {
  const layout = makeLayout(scene, curvesOf(scene));
  for (const { axis } of scene.charts) layout[axis] = { ...layout[axis], showgrid: false, showticklabels: false };
  return { data: [anchor("y"), ...scene.charts.map(({ axis }) => anchor(axis.replace("axis", "")))], layout };
}

const anchor = (yaxis) => ({ type: "scatter", x: [], y: [], yaxis, hoverinfo: "skip", showlegend: false });

/** The curves of the charts, as plotly traces. */
export const curvesOf = (scene) => [...areaTraces(scene.trace, scene.areas, scene), ...sampleTraces(scene)];

/** The charts of a view, each with its range and the ticks of its scale. */
export function chartsOf({ charts }, curves) {
  return charts.map((chart) => {
    const values = curves.filter(({ yaxis }) => yaxis === chart.axis.replace("axis", "")).map(({ y }) => y);
    const [low, high] = chart.range ?? extremes(values);
    const step = roundUp((high - low) / 2);
    const range = chart.range ?? [Math.floor(low / step) * step, Math.ceil(high / step) * step];
    const ticks = Array.from({ length: Math.round((range[1] - range[0]) / step) + 1 }, (_, i) => range[0] + i * step);
    return { ...chart, range, ticks };
  });
}

function extremes(lists) {
  let [low, high] = [0, 0];
  for (const list of lists) for (const value of list) [low, high] = [value < low ? value : low, value > high ? value : high];
  return high > low ? [low, high] : [0, 1];
}

function makeLayout(scene, curves) {
  const { t0, t1, theme, ticks } = scene;
  const { plot, total } = figureHeights(scene);
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
    ...chartAxes(scene, plot, curves),
  };
}

const domain = (y, height, plot) => [Math.max(0, 1 - (y + height) / plot), 1 - y / plot];

function chartAxes(scene, plot, curves) {
  const axes = {};
  chartsOf(scene, curves).forEach(({ axis, range, ticks }, i) => {
    const top = scene.height + CHART_GAP + i * (CHART_HEIGHT + CHART_GAP);
    axes[axis] = {
      range,
      tickvals: ticks,
      domain: domain(top, CHART_HEIGHT, plot),
      anchor: "x",
      side: "right",
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

/** What is marked over the lanes: the borders of steps, what is chosen, the way of its launch. */
export const marksOf = (scene) => ({ borders: stepBorders(scene), ...flowMarks(scene) });

/** Where steps begin; too close they would hide the lanes. */
function stepBorders({ trace, t0, t1, width }) {
  const { starts } = trace.steps;
  const [first, last] = [lowerBound(starts, t0), lowerBound(starts, t1)];
  return areStepsApart(last - first, width) ? starts.slice(first, last) : [];
}

/** Whether `count` steps on so many pixels get a border over the lanes. */
export const areStepsApart = (count, width) => count * STEP_BORDER_PX <= width;

/** The frame of the chosen event and the arrow between a launch and what it launched. */
function flowMarks(scene) {
  const { chosen, partner } = scene;
  const box = chosen && boxOf(scene, chosen);
  if (!box) return { frames: [], arrow: null };
  const frames = [{ box, width: 1.6, dash: "solid" }];
  const other = partner && boxOf(scene, partner);
  if (!other) return { frames, arrow: null };
  frames.push({ box: other, width: 1.2, dash: "dot" });
  const isLaunch = scene.trace.rows[chosen.row].kind === "api";
  const [from, to] = isLaunch ? [box, other] : [other, box];
  const down = to.y0 > from.y0;
  const arrow = { ax: (from.x0 + from.x1) / 2, ay: down ? from.y1 : from.y0, x: to.x0, y: down ? to.y0 : to.y1 };
  return { frames, arrow };
}

/** The borders as one path. */
function borderShape(borders, theme) {
  if (!borders.length) return [];
  const path = borders.map((start) => `M${start},0L${start},1`).join("");
  return [{ type: "path", path, yref: "paper", line: { color: theme.step, width: 1, dash: "dot" }, layer: "above" }];
}

const frameShape = ({ box, width, dash }, theme) => ({
  ...{ type: "rect", ...box, layer: "above" },
  line: { color: theme.ink, width, dash },
});

const arrowNote = (arrow, theme) => ({
  ...{ ...arrow, axref: "x", ayref: "y", xref: "x", yref: "y", text: "" },
  ...{ showarrow: true, arrowhead: 2, arrowsize: 1.1, arrowwidth: 1.4, arrowcolor: theme.ink },
});

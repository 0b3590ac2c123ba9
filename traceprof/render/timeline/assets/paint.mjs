import { CHART_GAP, CHART_HEIGHT, chartsOf, curvesOf, marksOf } from "./figure.mjs";
import { formatSi } from "./format.mjs";
import { inkOn } from "./color.mjs";

/**
 * The boxes, labels, charts and marks of a view on the canvas, from the same shapes and curves that a
 * saved picture has as plotly traces. For plotly each view would be a new picture of some 45 ms.
 */

const LABEL_PX = 10.5;
const TICK_PX = 9;
const ARROW_PX = 10;
const DASHES = { solid: [], dot: [2, 3] };

export function paintBoxes(context, scene) {
  const { t0, binNs, theme } = scene;
  const { shapes, labels } = scene.drawn;
  for (const { boxes, fill } of shapes) {
    context.fillStyle = fill;
    context.beginPath();
    for (let i = 0; i < boxes.length; i += 4) {
      const left = (boxes[i] - t0) / binNs;
      context.rect(left, boxes[i + 2], (boxes[i + 1] - t0) / binNs - left, boxes[i + 3] - boxes[i + 2]);
    }
    context.fill();
  }
  context.font = `${LABEL_PX}px ${theme.font}`;
  context.textBaseline = "middle";
  for (const { x, y, text, color } of labels) {
    context.fillStyle = inkOn(color);
    context.fillText(text, (x - t0) / binNs, y);
  }
}

/** The charts of a view with their places: [{…chart, top, yOf}, …] */
function placedCharts(scene, height, curves) {
  return chartsOf(scene, curves).map((chart, i) => {
    const top = height + CHART_GAP + i * (CHART_HEIGHT + CHART_GAP);
    const [low, high] = chart.range;
    return { ...chart, top, yOf: (value) => top + CHART_HEIGHT * (1 - (value - low) / (high - low)) };
  });
}

/** The charts below the lanes, with their grid. */
export function paintCharts(context, scene, height) {
  const curves = curvesOf(scene);
  for (const { axis, ticks, yOf } of placedCharts(scene, height, curves)) {
    context.fillStyle = scene.theme.line;
    for (const tick of ticks) context.fillRect(0, Math.round(yOf(tick)), scene.width, 1);
    let below = null;
    for (const curve of curves.filter(({ yaxis }) => yaxis === axis.replace("axis", ""))) {
      const points = pointsOf(curve, scene, yOf);
      paintCurve(context, curve, points, curve.fill === "tonexty" ? below : null, yOf(0));
      below = points;
    }
  }
}

/** The numbers of the scales, right of the charts. */
export function paintTicks(context, scene, height) {
  context.font = `${TICK_PX}px ${scene.theme.font}`;
  context.textBaseline = "middle";
  context.fillStyle = scene.theme.muted;
  for (const { ticks, top, yOf } of placedCharts(scene, height, curvesOf(scene))) {
    const lowest = top + CHART_HEIGHT - TICK_PX / 2;
    for (const tick of ticks) context.fillText(formatSi(tick), scene.width + 4, Math.min(yOf(tick), lowest));
  }
}

/** The corners of a curve in pixels: [x, y, …]; one of samples keeps its value until the next. */
function pointsOf({ x, y, line }, { t0, binNs }, yOf) {
  const points = [];
  for (let i = 0; i < x.length; i++) {
    const at = (x[i] - t0) / binNs;
    if (line.shape === "hv" && i) points.push(at, points.at(-1));
    points.push(at, yOf(y[i]));
  }
  return points;
}

function paintCurve(context, { fill, fillcolor, line }, points, below, zero) {
  if (!points.length) return;
  const path = () => {
    context.beginPath();
    for (let i = 0; i < points.length; i += 2) context.lineTo(points[i], points[i + 1]);
  };
  if (fill) {
    const ground = below ?? [points[0], zero, points.at(-2), zero];
    path();
    for (let i = ground.length - 2; i >= 0; i -= 2) context.lineTo(ground[i], ground[i + 1]);
    context.fillStyle = fillcolor;
    context.fill();
  }
  if (!line.width) return;
  path();
  context.lineWidth = line.width;
  context.strokeStyle = line.color;
  context.stroke();
}

/** The borders of steps over all lanes, the frame of what is chosen, the arrow of its launch. */
export function paintMarks(context, scene, plotHeight) {
  const { t0, binNs, theme } = scene;
  const { borders, frames, arrow } = marksOf(scene);
  const xOf = (t) => (t - t0) / binNs;
  context.lineWidth = 1;
  context.strokeStyle = theme.step;
  context.setLineDash(DASHES.dot);
  context.beginPath();
  for (const t of borders) {
    const x = Math.round(xOf(t)) + 0.5;
    context.moveTo(x, 0);
    context.lineTo(x, plotHeight);
  }
  context.stroke();
  context.strokeStyle = theme.ink;
  for (const { box, width, dash } of frames) {
    context.lineWidth = width;
    context.setLineDash(DASHES[dash]);
    context.strokeRect(xOf(box.x0), box.y0, xOf(box.x1) - xOf(box.x0), box.y1 - box.y0);
  }
  context.setLineDash([]);
  if (arrow) paintArrow(context, [xOf(arrow.ax), arrow.ay], [xOf(arrow.x), arrow.y], theme.ink);
}

function paintArrow(context, [x0, y0], [x1, y1], color) {
  const angle = Math.atan2(y1 - y0, x1 - x0);
  context.lineWidth = 1.4;
  context.strokeStyle = context.fillStyle = color;
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
  context.beginPath();
  context.moveTo(x1, y1);
  for (const side of [angle + 2.6, angle - 2.6]) context.lineTo(x1 + ARROW_PX * Math.cos(side), y1 + ARROW_PX * Math.sin(side));
  context.fill();
}

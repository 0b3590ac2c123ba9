import { inkOn, shadeOf, shaded, withAlpha } from "./color.mjs";
import { areMeant } from "./matching.mjs";
import { escapeForPlotly } from "./format.mjs";
import { lineOfTarget } from "./lines.mjs";
import { spanOf } from "./targets.mjs";

/** The boxes of the longest events and their labels: for the canvas, and as plotly traces of a picture. */

const LABEL_MIN_PX = 26;
const LABEL_CHARACTER_PX = 6;
const MAX_LABELS = 160;
const SHADED = new Set(["compute", "range", "host_op"]);
const PALE = new Set(["range", "host_op"]);

/** `scene` as for paintRaster, with `colors` and `hitColor`: {shapes: [{boxes, fill}], labels}. */
export function boxShapes(scene) {
  const shapes = new Map();
  const labels = [];
  for (const [row, items] of scene.boxes) {
    for (const line of linesOf(scene, row)) {
      for (const [place, item] of items) addBox(scene, line, row, place, item, shapes, labels);
    }
  }
  labels.sort((a, b) => b.widthPx - a.widthPx);
  return { shapes: [...shapes.values()], labels: labels.slice(0, MAX_LABELS) };
}

export function boxTraces(scene) {
  const { shapes, labels } = boxShapes(scene);
  return [...shapes.map(polygonTrace), ...(labels.length ? [labelTrace(labels)] : [])];
}

const linesOf = (scene, row) => scene.lines.filter((line) => line.type === "row" && line.row === row);

function addBox(scene, line, row, place, item, shapes, labels) {
  const { trace, hidden, matches, t0, t1, binNs } = scene;
  const channel = trace.rows[row].channels[place];
  if (hidden.has(channel.category)) return;
  const name = channel.names[item];
  const isHit = Boolean(matches && areMeant(matches, trace.rows[row]) && matches.names[name]);
  const isStep = trace.rows[row].kind === "step";
  const shape = shapeFor(scene, shapes, channel.category, isStep ? item : name, isHit, isStep);
  const left = channel.starts[item];
  const right = channel.ends[item];
  const widthPx = (Math.min(right, t1) - Math.max(left, t0)) / binNs;
  const gap = Math.min(0.6, widthPx * 0.12) * binNs;
  const margin = (t1 - t0) * 0.01;
  const x0 = Math.max(left, t0 - margin);
  const x1 = Math.max(x0 + binNs * 0.5, Math.min(right, t1 + margin) - gap);
  const y0 = line.y + 1.5;
  const y1 = line.y + line.height - 1.5;
  shape.boxes.push(x0, x1, y0, y1);
  const text = fittingLabel(trace.shorts[name], widthPx);
  if (!text || (matches && !isHit)) return;
  labels.push({ widthPx, x: Math.max(left, t0) + 3 * binNs, y: (y0 + y1) / 2, text, color: shape.color });
}

function shapeFor(scene, shapes, category, name, isHit, isStep) {
  const { key: kind } = scene.trace.categories[category];
  const which = isStep ? name % 2 : SHADED.has(kind) ? shadeOf(name) : 0;
  const key = scene.matches ? (isHit ? "hit" : `dim${category}`) : `${isStep ? "step" : category} ${which}`;
  if (!shapes.has(key)) {
    const plain = isStep ? scene.theme.steps : scene.colors[category];
    let color = shaded(plain, which, PALE.has(kind));
    let fill = color;
    if (scene.matches) {
      color = fill = scene.hitColor;
      if (!isHit) fill = withAlpha(plain, 0.22);
    }
    shapes.set(key, { boxes: [], fill, color });
  }
  return shapes.get(key);
}

/** The whole short name if it fits, else at least eight characters of it, else nothing. */
export function fittingLabel(short, widthPx) {
  if (widthPx < LABEL_MIN_PX) return "";
  const room = Math.floor((widthPx - 6) / LABEL_CHARACTER_PX);
  if (short.length <= room) return short;
  return room >= 8 ? `${short.slice(0, room - 1)}…` : "";
}

/** One filled path for all boxes of a color: one element of the page instead of thousands. */
function polygonTrace({ boxes, fill }) {
  const [x, y] = [[], []];
  for (let i = 0; i < boxes.length; i += 4) {
    const [x0, x1, y0, y1] = boxes.slice(i, i + 4);
    x.push(x0, x1, x1, x0, x0, NaN);
    y.push(y0, y0, y1, y1, y0, NaN);
  }
  return {
    type: "scatter",
    x: Float64Array.from(x),
    y: Float64Array.from(y),
    mode: "none",
    fill: "toself",
    fillcolor: fill,
    line: { width: 0, simplify: false },
    hoverinfo: "skip",
    showlegend: false,
  };
}

function labelTrace(labels) {
  return {
    type: "scatter",
    mode: "text",
    x: labels.map((label) => label.x),
    y: labels.map((label) => label.y),
    text: labels.map((label) => escapeForPlotly(label.text)),
    textposition: "middle right",
    textfont: { size: 10.5, color: labels.map((label) => inkOn(label.color)) },
    hoverinfo: "skip",
    showlegend: false,
    cliponaxis: true,
  };
}

/** Where a target is on the screen: {x0, x1, y0, y1} in data units, or null. */
export function boxOf(scene, target) {
  const line = lineOfTarget(scene.lines, target);
  if (!line) return null;
  const [x0, end] = spanOf(scene.trace, target);
  return { x0, x1: Math.max(end, x0 + 2 * scene.binNs), y0: line.y + 0.5, y1: line.y + line.height - 0.5 };
}

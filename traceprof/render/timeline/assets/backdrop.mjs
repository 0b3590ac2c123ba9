import { itemsBetween } from "./channel.mjs";
import { MARGIN } from "./figure.mjs";
import { paintBoxes, paintCharts, paintMarks, paintTicks } from "./paint.mjs";
import { paintRaster } from "./raster.mjs";

const HATCH_PX = 7;

/**
 * What lies on the axes of the plotly figure, on a canvas: bands, the analyzed window, grid lines, the
 * raster, boxes, charts and marks. A picture that is saved has the last three as plotly traces.
 */
export class Backdrop {
  constructor(canvas) {
    this.canvas = canvas;
    this.raster = canvas.cloneNode();
    this.pixels = null;
  }

  draw(scene, plotHeight, { isPicture = false, scale = 1 } = {}) {
    const { canvas } = this;
    const { width, height } = scene;
    const whole = width + (isPicture ? 0 : MARGIN.right);
    resize(canvas, Math.round(whole * scale), Math.round(plotHeight * scale));
    canvas.style.width = `${whole}px`;
    canvas.style.height = `${plotHeight}px`;
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, whole, plotHeight);
    drawBands(context, scene);
    drawFocus(context, scene, plotHeight);
    drawGrid(context, scene, plotHeight);
    drawPauses(context, scene);
    if (height > 0) {
      this.paint(scene);
      context.drawImage(this.raster, 0, 0, width, height, 0, 0, width, height);
    }
    if (isPicture) return;
    context.save();
    context.beginPath();
    context.rect(0, 0, width, plotHeight);
    context.clip();
    paintBoxes(context, scene);
    paintCharts(context, scene, height);
    paintMarks(context, scene, plotHeight);
    context.restore();
    paintTicks(context, scene, height);
  }

  /** The pixels are kept between pictures of one size: clearing is cheaper than allocating. */
  paint(scene) {
    const { width, height } = scene;
    resize(this.raster, width, height);
    if (this.pixels?.width !== width || this.pixels.height !== height) this.pixels = new ImageData(width, height);
    const image = new Uint32Array(this.pixels.data.buffer);
    image.fill(0);
    paintRaster(scene, image);
    this.raster.getContext("2d").putImageData(this.pixels, 0, 0);
  }
}

function resize(canvas, width, height) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
}

function drawBands(context, { lines, theme, width }) {
  context.fillStyle = theme.band;
  for (const line of lines) {
    if (line.type !== "row") context.fillRect(0, line.y, width, line.height);
  }
}

/** The window that the analyses look at. */
function drawFocus(context, { trace, theme, t0, binNs, width }, height) {
  if (!trace.focus) return;
  const left = Math.max(-2, (trace.focus.start - t0) / binNs);
  const right = Math.min(width + 2, (trace.focus.end - t0) / binNs);
  if (right <= left) return;
  context.fillStyle = theme.focus;
  context.fillRect(left, 0, right - left, height);
  context.strokeStyle = theme.accent;
  context.strokeRect(Math.round(left) + 0.5, 0.5, Math.round(right - left) - 1, height - 1);
}

/** Where a recording has no part of the axis, or saw no device, lanes are hatched: that is no idle time. */
function drawPauses(context, { trace, lines, theme, t0, t1, binNs, width }) {
  const pauses = (trace.beside?.sides ?? []).map(({ clock }) => clock.pauses(t0, t1));
  const unknown = trace.groups.map(({ states }) => stretches(states, trace.not_recorded, t0, t1));
  if (!pauses.length && !unknown.some((found) => found.length)) return;
  context.save();
  context.beginPath();
  for (const line of lines) {
    const place = line.type === "group" ? line.group : line.type === "row" ? trace.rows[line.row].group : -1;
    for (const [from, to] of [...(pauses[trace.groups[place]?.side] ?? []), ...(unknown[place] ?? [])]) {
      const left = Math.max(0, (from - t0) / binNs);
      context.rect(left, line.y, Math.max(0, Math.min(width, (to - t0) / binNs) - left), line.height);
    }
  }
  context.clip();
  context.strokeStyle = theme.step;
  context.globalAlpha = 0.35;
  const height = lines.length ? lines.at(-1).y + lines.at(-1).height : 0;
  context.beginPath();
  for (let x = -height; x < width; x += HATCH_PX) {
    context.moveTo(x, height);
    context.lineTo(x + height, 0);
  }
  context.stroke();
  context.restore();
}

/** When, between two instants, a device is in a state. */
function stretches(states, category, t0, t1) {
  const channels = (states?.channels ?? []).filter((channel) => channel.category === category);
  return channels.flatMap((channel) => {
    const [first, last] = itemsBetween(channel, t0, t1);
    return Array.from({ length: last - first }, (_, i) => [channel.starts[first + i], channel.ends[first + i]]);
  });
}

function drawGrid(context, { ticks, theme, t0, binNs }, height) {
  context.fillStyle = theme.line;
  for (const t of ticks.values) context.fillRect(Math.round((t - t0) / binNs), 0, 1, height);
}

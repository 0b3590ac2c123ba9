import { occupancy, occupancyByCategory } from "./occupancy.mjs";
import { areMeant } from "./matching.mjs";
import { itemsBetween } from "./channel.mjs";
import { toPixel } from "./color.mjs";

/**
 * Everything that is too short for a box of its own, as one picture: one column of pixels per
 * bin, its strength the share of the bin that is busy. A bin with any event stays visible.
 */

const FAINTEST = 70;
const OPAQUE = 255;
const VISIBLE_RATIO = 1e-4;
const DIM = 0.25;

/** `scene`: {trace, lines, boxes, hidden, matches, pixels, hitPixel, t0, binNs, width, height}. */
export function paintRaster(scene, image = new Uint32Array(scene.width * scene.height)) {
  for (const line of scene.lines) {
    if (line.type === "row") paintRow(scene, image, line, line.row);
    if (line.type !== "group") continue;
    const group = scene.trace.groups[line.group];
    if (group.states) paintStates(scene, image, line, group.states.channels);
    else if (!line.isOpen && group.rows.length) paintRow(scene, image, line, group.rows[0]);
    if (scene.matches && !line.isOpen) paintFolded(scene, image, line);
  }
  return image;
}

/** The matches in the lanes that a line stands for: of a rank that is folded, in all of its lanes. */
function paintFolded(scene, image, line) {
  const { trace, matches, hidden, lit, width } = scene;
  const every = trace.groups.map((_, place) => place);
  const places = line.sibling === undefined ? [line.group] : every.filter(isOf(line, trace));
  const strip = new Uint32Array(width);
  if (lit) places.forEach((place) => paintLit(scene, strip, lit.groups.get(place)));
  const rows = lit ? [] : places.flatMap((place) => trace.groups[place].rows);
  for (const row of rows.filter((place) => areMeant(matches, trace.rows[place]))) {
    for (const channel of trace.rows[row].channels) if (!hidden.has(channel.category)) paintMatches(scene, strip, channel);
  }
  for (let y = Math.round(line.y) + 2; y < Math.round(line.y + line.height) - 2; y++) {
    for (let k = 0; k < width; k++) if (strip[k]) image[y * width + k] = strip[k];
  }
}

/** Whether a group is the device of the line, or another thing of its rank. */
const isOf = ({ group, sibling }, trace) => (place) =>
  place === group || (trace.groups[place].section === sibling && trace.groups[place].kind !== "device");

/** What was told of matches, of this view or of the one before. */
function paintLit({ lit, hitPixel, t0, binNs, width }, strip, bins) {
  for (let k = 0; bins && k < width; k++) {
    if (bins.has(Math.floor((t0 + (k + 0.5) * binNs - lit.t0) / lit.binNs))) strip[k] = hitPixel;
  }
}

function paintRow(scene, image, line, row) {
  const { kind } = scene.trace.rows[row];
  const paint = kind === "step" ? stepStrip : rowStrip;
  const strip = paint(scene, row, line.type === "row" ? (scene.boxes.get(row) ?? []) : []);
  const top = Math.round(line.y) + 2;
  const bottom = Math.round(line.y + line.height) - 2;
  for (let y = top; y < bottom; y++) image.set(strip, y * scene.width);
}

/** Steps too short for a box: each pixel as strong as its longest step is long, by the median. */
function stepStrip(scene, row, boxes) {
  const { trace, t0, t1, binNs, width, theme } = scene;
  const stepPixel = toPixel(theme.steps);
  const [channel] = trace.rows[row].channels;
  const strip = new Uint32Array(width);
  const drawn = new Set(boxes.map(([, item]) => item));
  const [first, last] = itemsBetween(channel, t0, t1);
  const longest = new Float64Array(width);
  for (let i = first; i < last; i++) {
    const from = Math.max(0, Math.floor((channel.starts[i] - t0) / binNs));
    const to = Math.min(width - 1, Math.floor((channel.ends[i] - t0) / binNs));
    if (!drawn.has(i)) for (let k = from; k <= to; k++) longest[k] = Math.max(longest[k], channel.ends[i] - channel.starts[i]);
  }
  const typical = Float64Array.from(longest.filter((ns) => ns > 0)).sort();
  const median = typical[Math.floor(typical.length / 2)];
  for (let k = 0; k < width; k++) {
    const strength = Math.min(1, longest[k] / (2 * median));
    if (longest[k] > 0) strip[k] = stepPixel | ((FAINTEST + (OPAQUE - FAINTEST) * strength) << 24);
  }
  return strip;
}

/** The pixels of one row: the busiest category of each bin, without what is drawn as boxes. */
export function rowStrip(scene, row, boxes) {
  const { trace, t0, binNs, width, hidden, pixels } = scene;
  const shown = trace.rows[row].channels.filter((channel) => !hidden.has(channel.category));
  const layers = shown.map((channel) => ({ channel, ...occupancy(channel, t0, binNs, width) }));
  for (const [place, item] of boxes) {
    const layer = layers.find(({ channel }) => channel === trace.rows[row].channels[place]);
    if (layer) removeBox(layer, item, scene);
  }
  const strip = new Uint32Array(width);
  const strength = scene.matches ? DIM : 1;
  const faintest = trace.rows[row].kind === "mark" ? OPAQUE : FAINTEST;
  for (let k = 0; k < width; k++) strip[k] = binPixel(layers, k, pixels, strength, faintest);
  if (scene.matches && areMeant(scene.matches, trace.rows[row])) {
    for (const { channel } of layers) paintMatches(scene, strip, channel);
  }
  return strip;
}

function binPixel(layers, k, pixels, strength, faintest) {
  let best = null;
  let bestRatio = 0;
  let total = 0;
  let any = null;
  for (const layer of layers) {
    const ratio = layer.ratios[k];
    if (ratio > 0) total += ratio;
    if (ratio > bestRatio) {
      bestRatio = ratio;
      best = layer;
    }
    if (layer.starting[k] > 0) any = layer;
  }
  if (total < VISIBLE_RATIO && !any) return 0;
  const alpha = faintest + (OPAQUE - faintest) * Math.sqrt(Math.min(1, total));
  return pixels[(best ?? any).channel.category] | ((alpha * strength) << 24);
}

function removeBox({ channel, ratios, starting }, item, { t0, binNs, width }) {
  const from = Math.max(0, (channel.starts[item] - t0) / binNs);
  const to = Math.min(width, (channel.ends[item] - t0) / binNs);
  for (let k = Math.floor(from); k < to; k++) {
    ratios[k] -= Math.min(to, k + 1) - Math.max(from, k);
    if (ratios[k] < 1e-9) ratios[k] = 0;
  }
  if (channel.starts[item] >= t0) starting[Math.floor(from)] -= 1;
}

/** Matches of a search are never merged away: each colors at least its pixel. */
function paintMatches({ matches: { names: wanted }, hitPixel, t0, binNs, width }, strip, channel) {
  const [first, last] = itemsBetween(channel, t0, t0 + width * binNs);
  for (let i = first; i < last; i++) {
    if (!wanted[channel.names[i]] || (channel.counts && channel.counts[i] > 1)) continue;
    const from = Math.max(0, Math.floor((channel.starts[i] - t0) / binNs));
    const to = Math.min(width - 1, Math.floor((channel.ends[i] - t0) / binNs));
    for (let k = from; k <= to; k++) strip[k] = hitPixel;
  }
}

/** A device as one line: its states stacked in each bin, which always add up to the whole. */
function paintStates(scene, image, line, channels) {
  const { trace, t0, binNs, width, hidden, pixels, matches } = scene;
  const found = occupancyByCategory(channels, t0, binNs, width);
  const order = trace.states.filter((category) => found.has(category) && !hidden.has(category));
  const height = Math.round(line.height - 6);
  const bottom = Math.round(line.y + line.height - 3);
  const alpha = (matches ? OPAQUE * DIM : OPAQUE) << 24;
  for (let k = 0; k < width; k++) {
    let sum = 0;
    let y = bottom;
    for (const category of order) {
      sum += found.get(category)[k];
      const top = bottom - Math.round(Math.min(1, sum) * height);
      for (; y > top; y--) image[(y - 1) * width + k] = pixels[category] | alpha;
    }
  }
}

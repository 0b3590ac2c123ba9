import assert from "node:assert/strict";
import test from "node:test";
import { boxTraces, fittingLabel } from "../../../traceprof/render/timeline/assets/boxes.mjs";
import { findLongest } from "../../../traceprof/render/timeline/assets/longest.mjs";
import { initiallyOpen, layoutLines } from "../../../traceprof/render/timeline/assets/lines.mjs";
import { paintRaster, rowStrip } from "../../../traceprof/render/timeline/assets/raster.mjs";
import { toPixel } from "../../../traceprof/render/timeline/assets/color.mjs";
import { CATEGORIES, channel, device, place, stream, trace } from "./build.mjs";

function sceneOf(built, more = {}) {
  const { lines, height } = layoutLines(built, new Set([0]), new Set());
  const colors = CATEGORIES.map((category) => category.light);
  return {
    trace: built,
    ...{ lines, height, colors, t0: 0, t1: 100, width: 100, binNs: 1 },
    ...{ hidden: new Set(), matches: null, boxes: new Map(), hitColor: "#e0a800" },
    pixels: colors.map(toPixel),
    hitPixel: toPixel("#e0a800") | (255 << 24),
    ...more,
  };
}

const alpha = (pixel) => pixel >>> 24;
const rgb = (pixel) => pixel & 0xffffff;

test("a bin with any event is visible, an idle one is not", () => {
  const built = trace([device(stream(channel("compute", [[10, 10.00001], [50, 60]])))]);
  const strip = rowStrip(sceneOf(built), 0, []);
  assert.equal(alpha(strip[0]), 0);
  assert.equal(alpha(strip[10]), 70);
  assert.equal(alpha(strip[55]), 255);
  assert.equal(rgb(strip[55]), toPixel("#0072B2"));
});

test("what is drawn as a box is not in the raster too", () => {
  const built = trace([device(stream(channel("compute", [[10, 20], [30, 31]])))]);
  const strip = rowStrip(sceneOf(built), 0, [[0, 0]]);
  assert.ok(Array.from(strip.slice(10, 20)).every((pixel) => pixel === 0));
  assert.equal(alpha(strip[30]), 255);
});

test("the longest events win when there are too many boxes", () => {
  const spans = Array.from({ length: 1000 }, (_, i) => [i * 10, i * 10 + 1 + (i % 7)]);
  const rows = [{ channels: [channel("compute", spans)] }];
  const { byRow, count } = findLongest(rows, [0], { t0: 0, t1: 10_000, minNs: 3, limit: 50 });
  assert.equal(count, 50);
  assert.ok(byRow.get(0).every(([, item]) => item % 7 === 6));
});

test("merged items never become boxes", () => {
  const merged = channel("compute", [[0, 100]], { busy: Float64Array.of(5), counts: Float64Array.of(3) });
  assert.equal(findLongest([{ channels: [merged] }], [0], { t0: 0, t1: 100, minNs: 1, limit: 9 }).count, 0);
});

test("boxes of one color are one path, whatever their number", () => {
  const spans = Array.from({ length: 20 }, (_, i) => [i * 5, i * 5 + 4, 0]);
  const built = trace([device(stream(channel("communication", spans)))]);
  const boxes = new Map([[0, spans.map((_, i) => [0, i])]]);
  const traces = boxTraces(sceneOf(built, { boxes }));
  assert.equal(traces.length, 1);
  assert.equal(traces[0].x.length, 20 * 6);
  assert.equal(traces[0].mode, "none");
});

test("a search lights up a match that is too short for a box", () => {
  const built = trace([device(stream(channel("compute", [[10, 10.1, 0], [50, 60, 1]])))]);
  const strip = rowStrip(sceneOf(built, { matches: { names: Uint8Array.of(1, 0, 0), kinds: null } }), 0, []);
  assert.equal(rgb(strip[10]), toPixel("#e0a800"));
  assert.ok(alpha(strip[55]) < 70);
});

test("labels fit their box or are left out", () => {
  assert.equal(fittingLabel("gemm", 20), "");
  assert.equal(fittingLabel("gemm", 30), "gemm");
  assert.equal(fittingLabel("a_very_long_kernel_name_indeed", 60), "a_very_l…");
  assert.equal(fittingLabel("a_very_long_kernel_name_indeed", 50), "");
});

test("a hostile label is drawn as text", () => {
  const built = trace([device(stream(channel("compute", [[0, 100, 0]])))], { names: ["<a href=x>$&%{y}"] });
  const boxes = new Map([[0, [[0, 0]]]]);
  const text = boxTraces(sceneOf(built, { boxes, binNs: 0.1 })).at(-1).text[0];
  assert.equal(text, "&lt;a href=x&gt;&#36;&amp;%&#123;y}");
});

test("the states of a device fill its line exactly", () => {
  const built = trace([device(stream(channel("compute", [[0, 50]])))]);
  built.groups[0].states = { channels: [channel("compute", [[0, 50]]), channel("idle", [[50, 100]])] };
  const scene = sceneOf(built);
  const line = scene.lines.find((entry) => entry.type === "group");
  const image = paintRaster({ ...scene, height: Math.ceil(scene.height) });
  const column = (x) =>
    Array.from({ length: line.height }, (_, i) => rgb(image[(line.y + i) * 100 + x])).filter((pixel) => pixel);
  assert.equal(column(10).length, line.height - 6);
  assert.ok(column(10).every((pixel) => pixel === toPixel("#0072B2")));
  assert.ok(column(90).every((pixel) => pixel === toPixel(CATEGORIES[place("idle")].light)));
});

test("as many groups are open at first as the screen has room for", () => {
  const row = { kind: "gpu", label: "Stream", channels: [channel("compute", [[0, 1]])] };
  const groups = Array.from({ length: 8 }, (_, i) => ({
    ...device(...Array(20).fill(row)),
    section: `process ${i}`,
  }));
  assert.deepEqual([...initiallyOpen(trace(groups))], [0]);
});

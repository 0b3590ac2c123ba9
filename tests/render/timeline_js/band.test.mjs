import assert from "node:assert/strict";
import test from "node:test";
import { channel, device, stream, trace } from "./build.mjs";
import { drawnBand, isDrawn, linesWithin } from "../../../traceprof/render/timeline/assets/band.mjs";
import { layoutLines } from "../../../traceprof/render/timeline/assets/lines.mjs";

test("a page of ordinary height is drawn whole, wherever the window is", () => {
  assert.deepEqual(drawnBand(3000, [900, 1800]), { top: 0, bottom: 3000 });
  assert.ok(isDrawn({ top: 0, bottom: 3000 }, 3000, [-50, 4000]));
});

test("of a tall page what the window shows is drawn, whatever that is", () => {
  for (const height of [3001, 11_436, 57_000]) {
    for (let top = -2000; top < height + 2000; top += 137) {
      const band = drawnBand(height, [top, top + 900]);
      assert.ok(isDrawn(band, height, [top, top + 900]), `${height} ${top} ${JSON.stringify(band)}`);
      assert.ok(band.top >= 0 && band.bottom <= height && band.bottom - band.top <= 2700);
    }
  }
});

test("paper has more than the window, within what a canvas can hold", () => {
  assert.deepEqual(drawnBand(11_436, [0, 900], true), { top: 0, bottom: 11_436 });
  assert.ok(drawnBand(57_000, [0, 900], true).bottom < 16_000);
});

test("the lines of a band are placed from its top on", () => {
  const lines = [0, 20, 40, 60].map((y) => ({ y, height: 20 }));
  assert.deepEqual(linesWithin(lines, { top: 30, bottom: 60 }).map(({ y }) => y), [-10, 10]);
});

const rank = (number) => [
  { kind: "thread", label: "Main thread", section: `rank ${number}`, process: number, rows: [{ kind: "api", label: "CUDA API", channels: [] }] },
  { ...device(stream(channel("compute", [[0, 50]]))), section: `rank ${number}`, process: number },
];

test("of many ranks each takes one line until one of its groups is open", () => {
  const many = trace(Array.from({ length: 9 }, (_, number) => rank(number)).flat());
  const folded = layoutLines(many, new Set([1]), new Set()).lines;
  assert.deepEqual(
    folded.slice(0, 5).map(({ type, label }) => [type, label]),
    [["section", "rank 0"], ["group", "Main thread"], ["group", "GPU 0"], ["row", "Stream 7"], ["group", "rank 1"]],
  );
  assert.equal(folded.length, 4 + 8);
  assert.deepEqual(folded.slice(4).map(({ group }) => group), [3, 5, 7, 9, 11, 13, 15, 17]);
});

test("of few ranks all lanes are named", () => {
  const few = trace(Array.from({ length: 4 }, (_, number) => rank(number)).flat());
  assert.equal(layoutLines(few, new Set(), new Set()).lines.length, 4 * 3);
});

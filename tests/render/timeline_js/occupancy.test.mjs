import assert from "node:assert/strict";
import test from "node:test";
import { bandwidth, occupancy } from "../../../traceprof/render/timeline/assets/occupancy.mjs";
import { channel } from "./build.mjs";

const values = (array) => Array.from(array);

test("each bin holds its exact share", () => {
  const { ratios, starting } = occupancy(channel("compute", [[0, 5], [10, 30], [30, 31]]), 0, 10, 4);
  assert.deepEqual(values(ratios), [0.5, 1, 1, 0.1]);
  assert.equal(values(starting).reduce((a, b) => a + b), 3);
});

test("a bin inside an event is full, one beside it empty", () => {
  const { ratios } = occupancy(channel("compute", [[0, 1000]]), 400, 10, 3);
  assert.deepEqual(values(ratios), [1, 1, 1]);
  assert.deepEqual(values(occupancy(channel("compute", [[0, 10]]), 20, 10, 2).ratios), [0, 0]);
});

test("nanoseconds stay exact far from zero", () => {
  const far = 123_456_789_012;
  const spans = Array.from({ length: 40 }, (_, i) => [far + 500 * i, far + 500 * i + 200]);
  const { ratios } = occupancy(channel("compute", [[0, 1], ...spans]), far, 100, 200);
  assert.deepEqual(values(ratios).slice(0, 5), [1, 1, 0, 0, 0]);
  assert.equal(values(ratios).reduce((a, b) => a + b) * 100, 40 * 200);
});

test("a condensed item spreads its busy time over its span", () => {
  const condensed = channel("compute", [[0, 100]], {
    busy: Float64Array.of(50),
    counts: Float64Array.of(7),
  });
  assert.deepEqual(values(occupancy(condensed, 0, 25, 4).ratios), [0.5, 0.5, 0.5, 0.5]);
});

test("an instant starts in its bin though it takes no time", () => {
  const { ratios, starting } = occupancy(channel("range", [[25, 25]]), 0, 10, 4);
  assert.deepEqual(values(ratios), [0, 0, 0, 0]);
  assert.deepEqual(values(starting), [0, 0, 1, 0]);
});

test("bandwidth shares the bytes out over the bins", () => {
  const copies = channel("h2d", [[5, 25]], { bytes: Float64Array.of(400) });
  const [rates] = [...bandwidth([copies], 0, 10, 3).values()];
  assert.deepEqual(values(rates), [10, 20, 10]);
});

test("bytes that are not known add nothing", () => {
  const copies = channel("h2d", [[0, 10]], { bytes: Float64Array.of(-1) });
  const [rates] = [...bandwidth([copies], 0, 10, 1).values()];
  assert.deepEqual(values(rates), [0]);
});

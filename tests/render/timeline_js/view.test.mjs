import assert from "node:assert/strict";
import test from "node:test";
import { View } from "../../../traceprof/render/timeline/assets/view.mjs";

function view(duration = 1_000_000) {
  const made = new View(duration);
  made.width = 1000;
  return made;
}

test("pixels and times are inverse to each other", () => {
  const shown = view();
  shown.goTo(250_000, 350_000);
  assert.equal(shown.timeAt(500), 300_000);
  assert.equal(shown.xOf(300_000), 500);
});

test("a zoom keeps the instant under the pointer", () => {
  const shown = view();
  shown.zoom(0.5, 400_000);
  assert.deepEqual([shown.t0, shown.t1], [200_000, 700_000]);
});

test("the view never leaves the trace nor becomes wider than it", () => {
  const shown = view();
  shown.goTo(-5_000_000, 5_000_000);
  assert.deepEqual([shown.t0, shown.t1], [0, 1_000_000]);
  shown.goTo(990_000, 1_090_000);
  assert.deepEqual([shown.t0, shown.t1], [902_000, 1_002_000]);
});

test("the view is at least 50 ns wide, unless the trace is shorter", () => {
  const shown = view();
  shown.goTo(500, 500);
  assert.deepEqual([shown.t0, shown.t1], [475, 525]);
  const short = view(10);
  short.goTo(4, 5);
  assert.equal(short.t1 - short.t0, 10);
});

test("an event that is visible and big enough does not move the view", () => {
  const shown = view();
  shown.reveal(100_000, 200_000);
  assert.equal(shown.t1 - shown.t0, 1_000_000);
  shown.reveal(100_000, 100_010);
  assert.deepEqual([shown.t0, shown.t1], [98_005, 102_005]);
});

test("every change is announced once", () => {
  const shown = view();
  let changes = 0;
  shown.changed = () => changes++;
  shown.pan(0.1);
  shown.fitSpan(10, 20, 0.1);
  assert.equal(changes, 2);
});

import assert from "node:assert/strict";
import test from "node:test";
import * as query from "../../../traceprof/render/timeline/assets/query.mjs";
import { channel, device, place, stream, trace } from "./build.mjs";

const correlated = (ids) => ({ correlations: Float64Array.from(ids) });

function launchTrace() {
  const host = {
    kind: "thread",
    label: "Main thread",
    rows: [
      { kind: "range", channels: [channel("range", [[0, 50, 0]])] },
      { kind: "range", channels: [channel("range", [[5, 20, 1]])] },
      { kind: "api", channels: [channel("api", [[10, 12, 2], [30, 33, 2]], correlated([7, 8]))] },
    ],
  };
  const kernels = channel("compute", [[40, 60, 0], [60, 61, 1]], correlated([8, 7]));
  return trace([host, device(stream(kernels))], { names: ["forward", "layer", "cudaLaunchKernel"] });
}

test("a kernel finds its launch and a launch its kernel", () => {
  const found = query.findPartner(launchTrace(), { row: 3, channel: 0, item: 0 });
  assert.deepEqual(found, { row: 2, channel: 0, item: 1 });
  assert.deepEqual(query.findPartner(launchTrace(), found), { row: 3, channel: 0, item: 0 });
});

test("correlations of another process are not confused", () => {
  const built = launchTrace();
  built.groups[1].process = 2;
  assert.equal(query.findPartner(built, { row: 3, channel: 0, item: 0 }), null);
});

test("the ranges of a kernel are those around its launch", () => {
  const built = launchTrace();
  const kernel = { row: 3, channel: 0, item: 1 };
  assert.deepEqual(query.enclosingRanges(built, kernel, query.findPartner(built, kernel)), ["forward", "layer"]);
});

test("a pick takes the nearest event within the tolerance", () => {
  const built = trace([device(stream(channel("compute", [[10, 20], [40, 50]])))]);
  assert.deepEqual(query.pickEvent(built, 0, 23, 5), { row: 0, channel: 0, item: 0 });
  assert.equal(query.pickEvent(built, 0, 30, 5), null);
});

test("a span clips times and shares out bytes", () => {
  const copies = channel("h2d", [[0, 10, 1], [20, 40, 2]], { bytes: Float64Array.of(100, 400) });
  const built = trace([device(stream(copies))]);
  const { categories, count, top } = query.sumSpan(built, [0], 5, 25);
  assert.deepEqual(categories.get(place("h2d")), { ns: 10, count: 2, bytes: 150 });
  assert.equal(count, 2);
  assert.deepEqual(top.map(({ name, ns }) => [name, ns]), [["b", 5], ["c", 5]]);
});

test("an event that ends where a span begins is not in it", () => {
  const built = trace([device(stream(channel("compute", [[0, 10], [10, 20]])))]);
  assert.deepEqual(query.countInside(built, 0, 10, 15), { items: 1, events: 1 });
});

test("a walk goes over the matches of a search in the order of time", () => {
  const built = trace([device(stream(channel("compute", [[0, 1, 0], [5, 6, 1], [9, 10, 0]])))], {
    names: ["ampere_GEMM", "relu"],
  });
  const matches = { names: Uint8Array.of(1, 0), kinds: null };
  assert.equal(query.nextMatch(built, matches, 0, 1).item, 2);
  assert.equal(query.nextMatch(built, matches, 9, -1).item, 0);
  assert.equal(query.nextMatch(built, matches, 9, 1), null);
});

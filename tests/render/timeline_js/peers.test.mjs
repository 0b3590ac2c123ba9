import assert from "node:assert/strict";
import test from "node:test";
import { peersOf } from "../../../traceprof/render/timeline/assets/peers.mjs";
import { channel, device, stream, trace } from "./build.mjs";

const peersIn = (key, ...spansOfRanks) => {
  const built = trace(spansOfRanks.map((spans) => device(stream(channel(key, spans)))), { duration: 10_000 });
  const { peers, matchedBy } = peersOf(built, { row: 0, channel: 0, item: 1 });
  return [matchedBy, peers.map(({ event }) => event.item)];
};

test("as many events on each rank are matched by number", () => {
  assert.deepEqual(peersIn("compute", [[0, 10], [20, 30]], [[5, 10], [90, 95]]), ["number", [1, 1]]);
});

test("collectives are matched by their ends, however late a rank arrives", () => {
  // Rank 1 arrives 1000 later, just before all leave, and has one more short one near the start.
  const first = [[0, 10], [100, 1200]];
  const late = [[0, 10], [98, 106], [1188, 1200]];
  assert.deepEqual(peersIn("communication", first, late), ["end", [1, 2]]);
});

test("other events are the nearest in time where their numbers differ", () => {
  const [how, items] = peersIn("compute", [[0, 10], [100, 1200]], [[0, 10], [98, 106], [1188, 1200]]);
  assert.equal(how, "start");
  assert.deepEqual(items, [1, 1]);
});

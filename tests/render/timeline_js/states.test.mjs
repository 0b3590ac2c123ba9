import assert from "node:assert/strict";
import test from "node:test";
import { deriveStates } from "../../../traceprof/render/timeline/assets/states.mjs";
import { CATEGORIES, channel, device, stream, trace } from "./build.mjs";

function statesOf(...rows) {
  const built = trace([device(...rows)]);
  deriveStates(built);
  return Object.fromEntries(
    built.groups[0].states.channels.map((c) => [
      CATEGORIES[c.category].key,
      Array.from(c.starts, (start, i) => [start, c.ends[i]]),
    ]),
  );
}

test("every instant is in exactly one state", () => {
  const found = statesOf(
    stream(channel("compute", [[10, 40]]), channel("memset", [[90, 95]])),
    stream(channel("communication", [[30, 60]])),
    stream(channel("h2d", [[50, 70]])),
  );
  assert.deepEqual(found, {
    idle: [[0, 10], [70, 90], [95, 100]],
    compute: [[10, 30]],
    overlap: [[30, 40]],
    exposed_communication: [[40, 60]],
    exposed_transfer: [[60, 70]],
    device_memory: [[90, 95]],
  });
});

test("two streams that compute together are one stretch of computing", () => {
  const found = statesOf(stream(channel("compute", [[0, 50]])), stream(channel("compute", [[20, 80]])));
  assert.deepEqual(found, { compute: [[0, 80]], idle: [[80, 100]] });
});

test("what a window cut off does not count", () => {
  assert.deepEqual(statesOf(stream(channel("compute", [[-50, 20], [90, 200]]))), {
    compute: [[0, 20], [90, 100]],
    idle: [[20, 90]],
  });
});

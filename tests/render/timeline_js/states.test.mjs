import assert from "node:assert/strict";
import test from "node:test";
import { deriveStates } from "../../../traceprof/render/timeline/assets/states.mjs";
import { meanStates } from "../../../traceprof/render/timeline/assets/areas.mjs";
import { idleGaps, idleWithin } from "../../../traceprof/render/timeline/assets/gaps.mjs";
import { lengthOfTarget, spanOf } from "../../../traceprof/render/timeline/assets/targets.mjs";
import { recordedOfSpan, recordedShare } from "../../../traceprof/render/timeline/assets/states_of_span.mjs";
import { CATEGORIES, channel, device, place, stream, trace } from "./build.mjs";

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

/** A device of which [0, 30) and [60, 100) were not recorded; it computes for 10 of the rest. */
function partly() {
  const states = { channels: [channel("not_recorded", [[0, 30], [60, 100]])] };
  const built = trace([{ ...device(stream(channel("compute", [[40, 50]]))), states }]);
  deriveStates(built);
  return built;
}

test("where nothing was recorded a device is not idle", () => {
  const found = partly().groups[0].states.channels.map((c) => [CATEGORIES[c.category].key, Array.from(c.starts, (s, i) => [s, c.ends[i]])]);
  assert.deepEqual(Object.fromEntries(found), {
    not_recorded: [[0, 30], [60, 100]],
    idle: [[30, 40], [50, 60]],
    compute: [[40, 50]],
  });
});

test("shares are of what was recorded", () => {
  const built = partly();
  assert.equal(recordedOfSpan(built, 0, 0, 100), 30);
  assert.equal(recordedShare(built, 0, 0, 100), 0.3);
  const gap = idleWithin(built, 0, 0, 100);
  const channelOf = built.groups[0].states.channels[gap.channel];
  assert.equal(channelOf.ends[gap.item] - channelOf.starts[gap.item], 10);
  const mean = meanStates(built.groups, 20, 40, 2, built.not_recorded);
  assert.deepEqual([...mean.get(place("compute"))], [10 / 30, 0]);
  assert.deepEqual([...mean.get(place("not_recorded"))], [0.25, 1]);
});

test("before the first and after the last work a device is idle, and that is a gap", () => {
  const built = trace([device(stream(channel("compute", [[30, 40], [45, 50]])))]);
  deriveStates(built);
  const spans = (...view) => idleGaps(built, view).map((gap) => spanOf(built, gap));
  assert.deepEqual(spans(0, 100), [[50, 100], [0, 30], [40, 45]]);
  assert.deepEqual(spanOf(built, idleWithin(built, 0, 0, 100)), [50, 100]);
  assert.deepEqual(spans(35, 48), [[40, 45]]);
  assert.deepEqual(spanOf(built, idleWithin(built, 0, 20, 45)), [0, 30]);
});

test("of merged gaps the longest is known", () => {
  const longest = { starts: Float64Array.of(0, 62, 80), ends: Float64Array.of(20, 71, 84) };
  const idle = channel("idle", [[0, 20], [50, 75], [78, 90]], { counts: Uint32Array.of(1, 4, 3), longest });
  const built = trace([{ ...device(), states: { channels: [idle] } }]);
  const found = idleGaps(built, [0, 100]).map((gap) => [spanOf(built, gap), lengthOfTarget(built, gap)]);
  assert.deepEqual(found, [[[0, 20], 20], [[62, 71], 9], [[80, 84], 4]]);
  assert.deepEqual(idleWithin(built, 0, 40, 100), { group: 0, gap: [62, 71] });
  assert.deepEqual(idleWithin(built, 0, 72, 100), { group: 0, gap: [80, 84] });
});

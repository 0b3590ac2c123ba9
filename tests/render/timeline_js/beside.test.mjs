import assert from "node:assert/strict";
import { test } from "node:test";
import { gained } from "../../../traceprof/render/timeline/assets/beside.mjs";

const plain = (text) => text.replace(/[\u00a0\u202f]/g, " ");

test("a change that rounds to 0% has no sign there", () => {
  assert.equal(plain(gained(1_000_000_000, 999_900_000)), "−100.0 µs (0.0%)");
  assert.equal(plain(gained(1_000_000_000, 990_000_000)), "−10.00 ms (−1.0%)");
  assert.equal(gained(5, 5), "no change");
});

import assert from "node:assert/strict";
import test from "node:test";
import { compileSearch, findMatches } from "../../../traceprof/render/timeline/assets/matching.mjs";
import { countBefore, findResults } from "../../../traceprof/render/timeline/assets/results.mjs";
import { channel, device, stream, trace } from "./build.mjs";

const NAMES = ["ncclDevKernel_AllReduce_Sum_f32", "all_reduce", "c10d::allreduce_", "ampere_sgemm_128", "Memcpy HtoD", "relu"];
const found = (text) => NAMES.filter(compileSearch(text).test);

test("one operation is found by any of its spellings", () => {
  for (const text of ["all-reduce", "AllReduce", "all_reduce", "ALL REDUCE"]) assert.deepEqual(found(text), NAMES.slice(0, 3));
});

test("other names of the same thing are found, and said", () => {
  assert.deepEqual(found("matmul"), ["ampere_sgemm_128"]);
  assert.ok(compileSearch("matmul").also.includes("gemm"));
  assert.deepEqual(found("h2d"), ["Memcpy HtoD"]);
});

test("a regular expression between slashes is one", () => {
  assert.deepEqual(found("/^nccl.*f32$/"), [NAMES[0]]);
  assert.deepEqual(found("/MEMCPY/i"), ["Memcpy HtoD"]);
  assert.equal(compileSearch("/(/").error, "invalid regular expression");
});

test("one character is no search yet", () => {
  assert.equal(compileSearch(" g "), null);
});

test("results are counted, summed and sorted; merged events have no name", () => {
  const merged = channel("compute", [[50, 60, 0]], { busy: Float64Array.of(5), counts: Float64Array.of(3) });
  const built = trace([device(stream(channel("compute", [[0, 1, 0], [5, 9, 1], [10, 20, 0]])), stream(merged))]);
  const matches = findMatches(built, { test: (name) => name === "a" });
  const longest = findResults(built, matches, "longest");
  assert.deepEqual([longest.count, longest.ns, longest.names], [2, 11, 1]);
  assert.deepEqual(longest.list.map(({ start }) => start), [10, 0]);
  assert.deepEqual(findResults(built, matches, "first").list.map(({ start }) => start), [0, 10]);
  assert.equal(countBefore(built, matches, 10), 1);
});

test("of many results the longest are kept", () => {
  const spans = Array.from({ length: 9000 }, (_, i) => [i * 10, i * 10 + 1 + (i % 9), 0]);
  const built = trace([device(stream(channel("compute", spans)))], { duration: 90_000 });
  const { count, list } = findResults(built, { names: Uint8Array.of(1), kinds: null }, "longest");
  assert.equal(count, 9000);
  assert.ok(list.length === 200 && list.every(({ start, end }) => end - start === 9));
  assert.equal(list[0].start, 80);
});

test("a kind of events is searched alone, all of it where nothing is said", () => {
  const host = { kind: "thread", label: "t", rows: [{ kind: "range", channels: [channel("range", [[0, 9, 0]])] }] };
  const names = ["gemm", "Memcpy host → device", "Memset"];
  const spans = channel("compute", [[0, 4, 0], [5, 6, 1], [7, 8, 2]]);
  const built = trace([host, device(stream(spans))], { names });
  const sought = (text, kind) => {
    const { count, list } = findResults(built, findMatches(built, compileSearch(text, kind), kind), "longest");
    return [count, ...list.map(({ name }) => names[name])];
  };
  assert.deepEqual(sought("", "kernels"), [1, "gemm"]);
  assert.deepEqual(sought("", "copies"), [2, "Memcpy host → device", "Memset"]);
  assert.deepEqual(sought("gemm", ""), [2, "gemm", "gemm"]);
  assert.deepEqual(sought("gemm", "ranges"), [1, "gemm"]);
  assert.deepEqual(sought("gemm", "calls"), [0]);
  assert.equal(compileSearch("", ""), null);
});

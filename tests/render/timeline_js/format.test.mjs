import assert from "node:assert/strict";
import test from "node:test";
import * as format from "../../../traceprof/render/timeline/assets/format.mjs";
import { lanesOfWords, wordsOfLanes } from "../../../traceprof/render/timeline/assets/lane_words.mjs";
import { stepTicks } from "../../../traceprof/render/timeline/assets/step_ticks.mjs";
import { formatLink, parseLink } from "../../../traceprof/render/timeline/assets/link.mjs";

test("durations have a unit that fits", () => {
  assert.equal(format.formatDuration(999), "999 ns");
  assert.equal(format.formatDuration(999_949), "999.9 µs");
  assert.equal(format.formatDuration(999_950), "1.000 ms");
  assert.equal(format.formatDuration(9_999_600), "10.00 ms");
  assert.equal(format.formatDuration(-999_999_999), "-1.000 s");
  assert.equal(format.formatDuration(999.6), "1.000 µs");
  assert.equal(format.formatBytes(999_999), "1.000 MB");
  assert.equal(format.formatDuration(1_500), "1.500 µs");
  assert.equal(format.formatDuration(2_345_678), "2.346 ms");
  assert.equal(format.formatExact(1_234_567), "1.235 ms (1,234,567 ns)");
});

test("bytes are decimal, rates are GB/s", () => {
  assert.equal(format.formatBytes(999), "999 B");
  assert.equal(format.formatBytes(25_600_000), "25.60 MB");
  assert.equal(format.formatRate(1000, 40), "25.00 GB/s");
});

test("ticks stand at round times, also those of an offset", () => {
  const { values, labels } = format.makeTicks(0, 1e6, 440);
  assert.deepEqual(values, [0, 500_000, 1_000_000]);
  assert.deepEqual(labels, ["0 µs", "500 µs", "1000 µs"]);
  assert.deepEqual(format.makeTicks(-20, 80, 220, 20).values, [-20, 30, 80]);
});

test("ticks of many steps stand at round numbers of steps", () => {
  const starts = Array.from({ length: 40 }, (_, i) => 10 * i);
  const steps = (first, words) => ({ starts, labels: starts.map((_, i) => `step ${first + i}${words}`) });
  const { values, labels } = stepTicks({ steps: steps(3, "") }, 0, 400, 600); // one in six has room
  assert.deepEqual(labels, ["step 10", "step 20", "step 30", "step 40"]);
  assert.deepEqual(values, [70, 170, 270, 370]);
  assert.equal(stepTicks({ steps: steps(3, " | step 77") }, 0, 400, 2000).labels[0], "step 4 | step 77");
  assert.equal(stepTicks({ steps: steps(3, "") }, 0, 40, 600).labels.length, 4); // all, where they fit
});

test("labels far from zero stay short", () => {
  const far = format.makeTicks(60_000_000, 64_000_000, 880);
  assert.equal(far.labels[1], "60.5 ms");
  const deep = format.makeTicks(123_456_789_000, 123_456_789_100, 880);
  assert.ok(deep.base > 0);
  assert.ok(deep.labels.every((label) => label.startsWith("+") && label.length < 12));
});

test("a link names a span on the clock of the trace, and what is chosen there", () => {
  const steps = { starts: [100, 200, 300], ends: [200, 300, 450], labels: ["step 7", "step 8", "step 9"] };
  const groups = [{ section: "rank 0", label: "GPU 0", rows: [0, 1] }];
  const trace = { offset_ns: 1000, rows: [{ group: 0 }, { group: 0 }], groups, steps, categories: [{ key: "api" }] };
  assert.equal(formatLink({ t0: 10.2, t1: 20, trace }), "#at=1010..1020");
  assert.deepEqual(parseLink("#at=1010..1020", trace).at, [10, 20]);
  assert.equal(parseLink("#at=5..1", trace), null);
  assert.equal(parseLink("#<img>", trace), null);
  assert.deepEqual(parseLink("#at=step:8..9&sel=step:9", trace).at, [200, 450]);
  assert.deepEqual(parseLink("#at=step:8..9&sel=step:9", trace).selection, [300, 450]);
  for (const text of ["step:8..7", "step:6", "step:10", "iteration:8"]) assert.equal(parseLink(`#at=${text}`, trace), null);
  const plain = { hidden: new Set(), order: {}, kinds: new Set(), filter: "", charts: [] };
  const lanes = { ...plain, folds: "", pinned: new Set([1]) };
  const text = formatLink({ t0: 0, t1: 9, trace, selection: [2, 3], place: { row: 1, start: 4 }, text: "a&b", lanes, hidden: new Set() });
  assert.equal(text, "#at=1000..1009&sel=1002..1003&event=R1@1004&find=a%26b&folds=none&pin=1&hide=none");
  const link = parseLink(text, trace);
  assert.deepEqual([link.selection, link.place, link.find, link.pins], [[2, 3], { row: 1, start: 4 }, "a&b", [1]]);
  assert.deepEqual(parseLink("#at=0..9&event=R1@2..3", trace).place, { row: 1, gap: [-998, -997] });
  assert.deepEqual(parseLink("#at=0..9&event=G0@2", trace).place, { group: 0, start: -998 });
  assert.equal(parseLink("#at=0..9&event=R7@2", trace).place, null);
});

test("how lanes are arranged comes back from its words; what is not there is left out", () => {
  const groups = [
    { section: "rank 0", label: "GPU 0", rows: [0, 1] },
    { section: "rank 1", label: "GPU 1", rows: [2] },
  ];
  const rows = [0, 0, 1].map((group) => ({ group }));
  const trace = { groups, rows, categories: [{ key: "compute" }, { key: "api" }] };
  const charts = [{ key: "chart|GPU busy %" }];
  const lanes = {
    hidden: new Set(["rank 1", "rank 0|GPU 0|1", "chart|GPU busy %", "of another page"]),
    order: { "": ["rank 1", "rank 0"], "rank 0|GPU 0": ["rank 0|GPU 0|1", "rank 0|GPU 0|0"] },
    kinds: new Set(["api"]),
    filter: "stream 7, a&b",
    charts,
  };
  const words = wordsOfLanes(trace, lanes, new Set([1]));
  assert.deepEqual(words.slice(0, 3), [["hide", "S1.R1.C0"], ["order", "T:S1.S0|G0:R1.R0"], ["kinds", "api"]]);
  const given = new URLSearchParams(words.map((word) => word.join("=")).join("&"));
  const found = lanesOfWords(trace, charts, given);
  lanes.hidden.delete("of another page");
  assert.deepEqual({ ...found, charts }, { ...lanes, off: new Set([1]) });
  assert.equal(lanesOfWords(trace, charts, new URLSearchParams("at=0..9")), null);
  const wrong = new URLSearchParams("hide=S9.x.<b>&order=Z:S0|T:G9&kinds=<img>&off=nothing");
  assert.deepEqual(lanesOfWords(trace, charts, wrong), {
    hidden: new Set(),
    order: { "": [] },
    kinds: new Set(),
    filter: "",
    off: new Set(),
  });
});

import assert from "node:assert/strict";
import test from "node:test";
import { contentText, fact, factsPart, tablePart } from "../../../traceprof/render/timeline/assets/contents.mjs";
import { csvCell, csvOf } from "../../../traceprof/render/timeline/assets/export.mjs";
import { LaneSet } from "../../../traceprof/render/timeline/assets/lane_set.mjs";
import { summarize } from "../../../traceprof/render/timeline/assets/population.mjs";
import { unionOf } from "../../../traceprof/render/timeline/assets/unions.mjs";
import { ordinal } from "../../../traceprof/render/timeline/assets/format.mjs";
import { channel, device, stream, trace } from "./build.mjs";

test("a cell that a sheet would take for a formula is text, numbers stay numbers", () => {
  assert.equal(csvCell("=HYPERLINK(1)"), "'=HYPERLINK(1)");
  assert.equal(csvCell("@a"), "'@a");
  assert.equal(csvCell("-3.000 µs"), "-3.000 µs");
  assert.equal(csvCell('a "b", c'), '"a ""b"", c"');
  assert.equal(csvCell("\u200b =1"), "'\u200b =1");
  assert.equal(csvCell("'=1"), "''=1");
  assert.equal(csvCell("＝1"), "'＝1");
});

test("no name ends a row or a text, and escapes can be undone", () => {
  assert.equal(csvCell("a\r=1"), "a\\u000d=1");
  assert.equal(csvCell("a\0\u2028\u202e\ufeff\ud800b"), "a\\u0000\\u2028\\u202e\\ufeff\\ud800b");
  assert.equal(csvCell("a\\u000d"), "a\\u005cu000d");
  assert.equal(csvCell("a\nb\t"), '"a\nb\t"');
});

test("facts and tables become rows with their captions", () => {
  const parts = [factsPart("F", [fact("a", 1), null]), tablePart("T", ["x", "y"], [{ cells: ["b", "2"] }])];
  assert.equal(csvOf(parts), "F\r\na,1\r\n\r\nT\r\nx,y\r\nb,2\r\n");
  assert.equal(contentText({ title: "t", parts }), "t\n\nF\na\t1\n\nT\nx\ty\nb\t2");
});

test("covered time counts overlaps once", () => {
  assert.equal(unionOf([0, 5, 20], [10, 12, 30]), 22);
  assert.equal(unionOf([0, 1], [10, 2]), 10);
});

test("the place of a duration is counted from the longest", () => {
  const found = summarize(Float64Array.of(1, 2, 2, 9), 2);
  assert.deepEqual([found.place, found.median, found.total], [2, 2, 14]);
  assert.equal(found.bins.reduce((a, b) => a + b), 4);
  assert.deepEqual([1, 2, 3, 4, 11, 22, 113].map(ordinal), ["the", "2nd", "3rd", "4th", "11th", "22nd", "113th"]);
});

function ranks(n) {
  const groups = Array.from({ length: n }, (_, rank) => ({
    ...device(stream(channel("compute", [[0, 1]]))),
    section: `rank ${rank} · python`,
    process: rank,
  }));
  return { ...trace(groups), processes: Object.fromEntries(groups.map((_, i) => [i, { rank: i, host: `node${i}` }])) };
}

const sections = (lanes) => lanes.layout().lines.filter(({ type }) => type === "section").map(({ label }) => label);

test("lanes are filtered by rank and by host", () => {
  const lanes = new LaneSet(ranks(12));
  lanes.filter = "rank 1";
  assert.deepEqual(sections(lanes), ["rank 1 · python"]);
  lanes.filter = "node11";
  assert.deepEqual(sections(lanes), ["rank 11 · python"]);
});

test("lanes are moved among their siblings, and hidden with what is in them", () => {
  const lanes = new LaneSet(ranks(3));
  const all = sections(lanes);
  lanes.move("", all, all[2], all[0]);
  assert.deepEqual(sections(lanes), [all[2], all[0], all[1]]);
  lanes.move("", sections(lanes), all[2], all[1]);
  assert.deepEqual(sections(lanes), all);
  lanes.hide(all[1]);
  assert.deepEqual(sections(lanes), [all[0], all[2]]);
  lanes.showHidden();
  assert.deepEqual(sections(lanes), all);
  lanes.kinds.add("device");
  assert.deepEqual(sections(lanes), []);
});

import test from "node:test";
import assert from "node:assert/strict";
import { sampleCharts } from "../../../traceprof/render/timeline/assets/samples.mjs";

test("charts of bytes are headed in words; names without such a unit are as they were given", () => {
  const metrics = ["torch_allocated_bytes", "received_bytes_per_s", "train_loss", "train_loss"];
  const charts = sampleCharts({ samples: metrics.map((metric) => ({ metric, source: "" })) }, 4);
  assert.deepEqual(
    charts.map((chart) => chart.title),
    ["torch allocated, bytes", "received, bytes/s", "train_loss"],
  );
  assert.deepEqual(
    charts.map((chart) => chart.metric),
    ["torch_allocated_bytes", "received_bytes_per_s", "train_loss"],
  );
});

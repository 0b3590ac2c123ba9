import { Timeline } from "./app.mjs";
import { decodeTrace } from "./decode.mjs";
import { applyTheme, initialTheme } from "./theme.mjs";
import { attachClocks } from "./clock.mjs";
import { addSteps } from "./steps.mjs";
import { deriveStates } from "./states.mjs";
import { unpack } from "./text.mjs";

/** Unpack plotly.js and the trace, and start. */

async function loadPlotly() {
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await unpack("traceprof-plotly"));
  document.head.append(script);
  // Other charts of the page are drawn with the same.
  document.dispatchEvent(new CustomEvent("traceprof-plotly"));
  return window.Plotly;
}

async function start() {
  const root = document.getElementById("traceprof-timeline");
  const theme = initialTheme();
  applyTheme(theme);
  const packed = unpack("traceprof-data");
  const plotly = await loadPlotly();
  const trace = attachClocks(decodeTrace(await packed));
  deriveStates(trace);
  addSteps(trace);
  const timeline = new Timeline(root, trace, plotly, theme);
  await timeline.start();
  window.traceprof = timeline;
  root.dataset.ready = "true";
}

start().catch((error) => {
  const root = document.getElementById("traceprof-timeline");
  root.textContent = `Cannot draw this page: ${error.message}. Use a browser from 2023 or later.`;
  throw error;
});

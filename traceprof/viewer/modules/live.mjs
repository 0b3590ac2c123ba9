import { applyTheme, initialTheme } from "./theme.mjs";
import { LiveTimeline } from "./live_timeline.mjs";
import { Remote } from "./remote.mjs";

/** Fetch the overview of a trace, and start; a link of the page around names the view. */

async function start(root) {
  const theme = initialTheme();
  applyTheme(theme);
  const remote = new Remote(root.dataset.pane);
  await remote.start();
  const { hash } = window.parent.location;
  if (hash) history.replaceState(null, "", window.parent.traceprofPartOf(hash, Number(root.dataset.pane)));
  const timeline = new LiveTimeline(root, remote, window.Plotly, theme);
  await timeline.start();
  window.traceprof = timeline;
  window.addEventListener("storage", () => {
    timeline.setTheme(initialTheme());
    timeline.redraw();
  });
  root.dataset.ready = "true";
}

const place = document.getElementById("traceprof-timeline");
start(place).catch((error) => {
  place.textContent = `Cannot draw this timeline: ${error.message}.`;
  throw error;
});

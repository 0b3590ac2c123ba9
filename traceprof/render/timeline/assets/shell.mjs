import { Backdrop } from "./backdrop.mjs";
import { HeldAxis } from "./held_axis.mjs";
import { Notes } from "./notes.mjs";
import { Panel } from "./panel.mjs";
import { Minimap } from "./minimap.mjs";
import { Pointer } from "./pointer.mjs";
import { Tooltip } from "./tooltip.mjs";
import { element } from "./dom.mjs";
import { listenToKeys } from "./keyboard.mjs";
import { makeHelp, makeToolbar } from "./toolbar.mjs";

/** The elements of the timeline, put into `root`, and what listens to the reader. */
export function buildShell(app, root) {
  const canvas = element("canvas", { "aria-hidden": "true" });
  const figure = element("div", { cls: "figure" });
  const overlay = element("div", { cls: "overlay" });
  const crosshair = element("div", { cls: "crosshair" });
  const selectionText = element("span");
  const selectionBox = element("div", { cls: "selection" }, selectionText);
  const plot = element("div", {
    cls: "plot",
    tabindex: "0",
    role: "application",
    "aria-label": "Timeline. Press W or S to zoom, A or D to pan, slash to search, question mark to list all keys.",
  });
  const notes = new Notes(app);
  const axis = new HeldAxis(app);
  plot.append(notes.flags, axis.node, canvas, figure, overlay, crosshair, selectionBox);
  const labels = element("div", { cls: "lanes" });
  const [toolbar, minimap, help] = [makeToolbar(app), new Minimap(app), makeHelp()];
  const panel = new Panel(app, root, notes.form, toolbar);
  const grid = element("div", { cls: "grid" }, minimap.node, labels, plot);
  const stage = element("div", { cls: "stage" }, grid, panel.node);
  root.replaceChildren(toolbar.node, stage, help);
  const parts = { canvas, figure, overlay, crosshair, selectionText, selectionBox, plot, labels, panel, notes };
  const pointer = new Pointer(app, overlay);
  listenToKeys(app);
  new ResizeObserver(() => {
    panel.place();
    app.resize();
  }).observe(plot);
  window.addEventListener("hashchange", () => app.followLink());
  window.addEventListener("scroll", () => app.scrolled(), { passive: true });
  window.addEventListener("beforeprint", () => app.print(true));
  window.addEventListener("afterprint", () => app.print(false));
  const backdrop = new Backdrop(canvas);
  return { ...parts, axis, toolbar, minimap, help, pointer, backdrop, tooltip: new Tooltip() };
}

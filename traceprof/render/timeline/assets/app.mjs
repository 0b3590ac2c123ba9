import { MARGIN, figureHeights, makeFigure } from "./figure.mjs";
import { Backdrop } from "./backdrop.mjs";
import { Minimap } from "./minimap.mjs";
import { Pointer } from "./pointer.mjs";
import { Tooltip } from "./tooltip.mjs";
import { applyTheme, storeTheme, themeOf } from "./theme.mjs";
import { chartsFor, drawnText, makeScene } from "./scene.mjs";
import { countMatches, findPartner, matchNames, nextMatch, pickEvent } from "./query.mjs";
import { drawLaneLabels } from "./lane_labels.mjs";
import { element } from "./dom.mjs";
import { formatCount, formatDuration } from "./format.mjs";
import { initiallyOpen, layoutLines } from "./lines.mjs";
import { listenToKeys } from "./keyboard.mjs";
import { makeHelp, makeToolbar } from "./toolbar.mjs";
import { makePicture } from "./picture.mjs";
import { readLink, writeLink } from "./link.mjs";
import { showEvent, showSpan } from "./details.mjs";

const NARROWEST_NS = 50;

/** The timeline: what is shown (t0, t1, open groups, …) and the page that shows it. */
export class Timeline {
  constructor(root, trace, plotly, themeName) {
    this.trace = trace;
    this.plotly = plotly;
    this.plotlyConfig = { ...trace.plotly_config, displayModeBar: false, staticPlot: true };
    this.t0 = 0;
    this.t1 = trace.duration_ns;
    this.open = initiallyOpen(trace);
    this.pinned = new Set();
    this.hidden = new Set();
    this.matches = null;
    this.selection = null;
    this.chosen = null;
    this.partner = null;
    this.frame = 0;
    this.redraws = 0;
    this.width = 100;
    this.charts = chartsFor(trace);
    this.root = root;
    this.isEmbedded = "embedded" in root.dataset;
    this.build(root);
    this.setTheme(themeName);
    this.layout();
  }

  build(root) {
    this.help = makeHelp();
    this.toolbar = makeToolbar(this);
    this.minimap = new Minimap(this);
    this.labels = element("div", { cls: "lanes" });
    this.figure = element("div", { cls: "figure" });
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.backdrop = new Backdrop(this.canvas);
    this.overlay = element("div", { cls: "overlay" });
    this.crosshair = element("div", { cls: "crosshair" });
    this.selectionText = element("span");
    this.selectionBox = element("div", { cls: "selection" }, this.selectionText);
    this.plot = element("div", {
      cls: "plot",
      tabindex: "0",
      role: "application",
      "aria-label": "Timeline. W and S zoom, A and D pan, slash searches, question mark lists all keys.",
    });
    this.plot.append(this.canvas, this.figure, this.overlay, this.crosshair, this.selectionBox);
    const grid = element("div", { cls: "grid" }, this.minimap.node, this.labels, this.plot);
    this.details = element("div", { cls: "details", "aria-live": "polite" });
    root.replaceChildren(this.toolbar.node, grid, this.details, this.help);
    this.tooltip = new Tooltip();
    this.pointer = new Pointer(this, this.overlay);
    listenToKeys(this);
    new ResizeObserver(() => this.resize()).observe(this.plot);
    window.addEventListener("hashchange", () => this.followLink());
  }

  setTheme(name) {
    this.themeName = name;
    this.theme = themeOf(name);
    this.colours = this.trace.categories.map((category) => category[name]);
    applyTheme(name);
    this.toolbar.paint(this.colours);
  }

  /** Among other things, keys and the wheel are the page's until the reader turns to the plot. */
  get isAttended() {
    return !this.isEmbedded || this.root.contains(document.activeElement);
  }

  toggleTheme() {
    this.setTheme(this.themeName === "dark" ? "light" : "dark");
    storeTheme(this.themeName);
    document.dispatchEvent(new CustomEvent("traceprof-theme", { detail: this.themeName }));
    this.redraw();
    this.minimap.draw();
  }

  /** Which lines there are; after it, the page must be drawn again. */
  layout() {
    const { lines, height } = layoutLines(this.trace, this.open, this.pinned);
    this.lines = lines;
    this.height = height;
    drawLaneLabels(this, this.labels);
  }

  async start() {
    this.goTo(...this.trace.view);
    this.followLink();
    await this.draw();
    await this.minimap.draw();
    this.minimap.showView();
  }

  measuredWidth() {
    return Math.max(100, Math.round(this.plot.clientWidth - MARGIN.right));
  }

  get binNs() {
    return (this.t1 - this.t0) / this.width;
  }

  resize() {
    if (!this.scene || Math.abs(this.scene.width - this.measuredWidth()) <= 2) return;
    this.redraw();
    this.minimap.draw();
  }

  /** Draw once in the next frame, however often it is asked for. */
  redraw() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = 0;
    this.width = this.measuredWidth();
    this.scene = makeScene(this);
    this.areas = this.scene.areas;
    const { data, layout } = makeFigure(this.scene);
    const { plot, total } = figureHeights(this.scene);
    this.backdrop.draw(this.scene, plot);
    const done = this.plotly.react(this.figure, data, layout, this.plotlyConfig);
    this.canvas.style.top = `${MARGIN.top}px`;
    this.overlay.style.cssText = `left:0;top:${MARGIN.top}px;width:${this.width}px;height:${plot}px`;
    this.labels.style.height = `${total}px`;
    this.toolbar.showRange(drawnText(this.scene));
    this.minimap.showView();
    this.placeSelection();
    if (!this.isEmbedded) writeLink(this);
    return done.then(() => (this.redraws += 1));
  }

  timeAt(x) {
    return this.t0 + x * this.binNs;
  }

  xOf(t) {
    return (t - this.t0) / this.binNs;
  }

  pointerTime() {
    return this.timeAt(this.pointer.x ?? this.width / 2);
  }

  goTo(from, to) {
    const whole = this.trace.duration_ns;
    const width = Math.max(Math.min(NARROWEST_NS, whole), Math.min(to - from, whole));
    const centre = (from + to) / 2;
    const start = width === to - from ? from : centre - width / 2;
    const spare = width < whole ? 0.02 * width : 0;
    this.t0 = Math.max(-spare, Math.min(start, whole - width + spare));
    this.t1 = this.t0 + width;
    this.redraw();
  }

  zoom(factor, centre) {
    this.goTo(centre - (centre - this.t0) * factor, centre + (this.t1 - centre) * factor);
  }

  pan(part) {
    const by = (this.t1 - this.t0) * part;
    this.goTo(this.t0 + by, this.t1 + by);
  }

  fit() {
    if (this.selection) {
      const [from, to] = this.selection;
      this.goTo(from - (to - from) * 0.05, to + (to - from) * 0.05);
    } else if (this.chosen) this.fitEvent(this.chosen);
  }

  fitEvent({ row, channel, item }) {
    const { starts, ends } = this.trace.rows[row].channels[channel];
    const half = Math.max(NARROWEST_NS, ends[item] - starts[item]) * 0.8;
    const centre = (starts[item] + ends[item]) / 2;
    this.goTo(centre - half, centre + half);
  }

  pick(row, x) {
    return pickEvent(this.trace, row, this.timeAt(x), 1.5 * this.binNs);
  }

  choose(event) {
    this.chosen = event;
    this.partner = event && findPartner(this.trace, event);
    if (event) showEvent(this, this.details, event);
    else this.details.replaceChildren();
    this.redraw();
  }

  /** Choose the neighbour of the chosen event in its lane, and bring it into view. */
  stepEvent(direction) {
    if (!this.chosen) return;
    const { row, channel, item } = this.chosen;
    const { starts } = this.trace.rows[row].channels[channel];
    const every = new Uint8Array(this.trace.names.length).fill(1);
    const lane = { ...this.trace, rows: [this.trace.rows[row]] };
    const next = nextMatch(lane, every, starts[item], direction);
    if (next) this.visit({ ...next, row });
  }

  visit(event) {
    const { starts, ends } = this.trace.rows[event.row].channels[event.channel];
    const [start, end] = [starts[event.item], ends[event.item]];
    this.open.add(this.trace.rows[event.row].group);
    this.layout();
    this.choose(event);
    const isInside = start >= this.t0 && end <= this.t1;
    const isBigEnough = end - start > 3 * this.binNs;
    if (isInside && isBigEnough) return;
    const width = Math.max((end - start) * 8, Math.min(this.t1 - this.t0, (end - start) * 400), NARROWEST_NS);
    const centre = (start + end) / 2;
    this.goTo(centre - width / 2, centre + width / 2);
  }

  search(text) {
    this.matches = matchNames(this.trace, text);
    const count = this.matches ? countMatches(this.trace, this.matches) : 0;
    this.toolbar.showFound(this.matches ? `${formatCount(count)} events` : "");
    this.redraw();
  }

  stepMatch(direction) {
    if (!this.matches) return;
    const from = this.chosen ? this.startOf(this.chosen) : direction > 0 ? this.t0 - 1 : this.t1;
    const next = nextMatch(this.trace, this.matches, from, direction);
    if (next) this.visit(next);
  }

  startOf({ row, channel, item }) {
    return this.trace.rows[row].channels[channel].starts[item];
  }

  select(from, to) {
    this.selection = [from, to];
    this.placeSelection();
  }

  showSelection() {
    if (this.selection) showSpan(this, this.details, this.selection);
  }

  placeSelection() {
    const [from, to] = this.selection ?? [0, -1];
    const isVisible = this.selection && from < this.t1 && to > this.t0;
    this.selectionBox.style.display = isVisible ? "block" : "none";
    if (!isVisible) return;
    const left = Math.max(0, this.xOf(from));
    this.selectionBox.style.left = `${left}px`;
    this.selectionBox.style.width = `${Math.min(this.width, this.xOf(to)) - left}px`;
    this.selectionText.textContent = `Δ ${formatDuration(to - from)}`;
  }

  clear() {
    this.selection = null;
    this.matches = null;
    this.toolbar.search.value = "";
    this.toolbar.showFound("");
    this.choose(null);
  }

  toggleCategory(category) {
    if (!this.hidden.delete(category)) this.hidden.add(category);
    this.redraw();
    return !this.hidden.has(category);
  }

  toggleGroup(group) {
    if (!this.open.delete(group)) this.open.add(group);
    this.layout();
    this.redraw();
  }

  togglePin(row) {
    if (!this.pinned.delete(row)) this.pinned.add(row);
    this.layout();
    this.redraw();
  }

  showHover(x, point, event) {
    this.crosshair.style.display = "block";
    this.crosshair.style.left = `${x}px`;
    this.tooltip.show(point, event.clientX, event.clientY);
  }

  hideHover() {
    this.crosshair.style.display = "none";
    this.tooltip.hide();
  }

  followLink() {
    const span = readLink(this.trace);
    if (!span) return;
    this.goTo(...span);
    if (this.isEmbedded) this.root.scrollIntoView();
  }

  savePicture() {
    return this.plotly.downloadImage(makePicture(this), { format: "png", scale: 2, filename: "timeline" });
  }
}

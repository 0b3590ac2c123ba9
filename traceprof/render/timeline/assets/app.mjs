import { MARGIN, figureHeights, makeFigure } from "./figure.mjs";
import { View } from "./view.mjs";
import { applyTheme, storeTheme, themeOf } from "./theme.mjs";
import { chartsFor, drawnText, makeScene } from "./scene.mjs";
import { countMatches, findPartner, matchNames, nextMatch, pickEvent } from "./query.mjs";
import { drawLaneLabels } from "./lane_labels.mjs";
import { formatCount, formatDuration } from "./format.mjs";
import { initiallyOpen, layoutLines } from "./lines.mjs";
import { makePicture } from "./picture.mjs";
import { buildShell } from "./shell.mjs";
import { readLink, writeLink } from "./link.mjs";
import { showEvent, showSpan } from "./details.mjs";

/** The timeline: what is shown (t0, t1, open groups, …) and the page that shows it. */
export class Timeline extends View {
  constructor(root, trace, plotly, themeName) {
    super(trace.duration_ns);
    this.trace = trace;
    this.overview = trace;
    this.plotly = plotly;
    this.plotlyConfig = { ...trace.plotly_config, displayModeBar: false, staticPlot: true };
    this.open = initiallyOpen(trace);
    this.pinned = new Set();
    this.hidden = new Set();
    this.matches = null;
    this.selection = null;
    this.chosen = null;
    this.partner = null;
    this.frame = 0;
    this.redraws = 0;
    this.charts = chartsFor(trace);
    this.root = root;
    this.isEmbedded = "embedded" in root.dataset;
    Object.assign(this, buildShell(this, root));
    this.setTheme(themeName);
    this.layout();
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

  resize() {
    if (!this.scene || Math.abs(this.scene.width - this.measuredWidth()) <= 2) return;
    this.redraw();
    this.minimap.draw();
  }

  changed() {
    this.redraw();
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

  pointerTime() {
    return this.timeAt(this.pointer.x ?? this.width / 2);
  }

  fit() {
    if (this.selection) {
      this.fitSpan(...this.selection, 0.05);
    } else if (this.chosen) this.fitEvent(this.chosen);
  }

  fitEvent({ row, channel, item }) {
    const { starts, ends } = this.trace.rows[row].channels[channel];
    this.fitSpan(starts[item], ends[item], 0.3);
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
    this.open.add(this.trace.rows[event.row].group);
    this.layout();
    this.choose(event);
    this.reveal(starts[event.item], ends[event.item]);
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

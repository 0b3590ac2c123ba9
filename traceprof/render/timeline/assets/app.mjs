import { Address, formatLink, linkOf } from "./link.mjs";
import { MARGIN, figureHeights } from "./figure.mjs";
import { applyTheme, storeTheme, themeOf } from "./theme.mjs";
import { drawnText, makeScene } from "./scene.mjs";
import { spanOf } from "./targets.mjs";
import { Searcher } from "./searching.mjs";
import { LaneSet } from "./lane_set.mjs";
import { buildShell } from "./shell.mjs";
import { drawnBand, isDrawn } from "./band.mjs";
import { drawLaneLabels } from "./lane_labels.mjs";
import { followAddress } from "./following.mjs";
import { lineOfTarget } from "./lines.mjs";
import { makePicture } from "./picture.mjs";
import { lanesInWindow, placeSelection, sizeParts } from "./sizing.mjs";

const PAPER_PX = 520; // what the lanes have of the width of A4 and of Letter

/** The timeline: what is shown (t0, t1, open groups, …) and the page that shows it. */
export class Timeline extends Searcher {
  constructor(root, trace, plotly, themeName) {
    super(trace.duration_ns);
    this.trace = trace;
    this.overview = trace;
    this.plotly = plotly;
    this.plotlyConfig = { ...trace.plotly_config, displayModeBar: false, staticPlot: true };
    this.lanes = new LaneSet(trace);
    this.hidden = new Set();
    this.lit = null; // where matches are that are not on the page
    this.frame = 0;
    this.redraws = 0;
    this.root = root;
    this.isEmbedded = "embedded" in root.dataset;
    this.isFollowing = false;
    this.isPrinting = false;
    this.address = new Address(this);
    Object.assign(this, buildShell(this, root));
    this.setTheme(themeName);
    this.layout();
  }

  get open() {
    return this.lanes.open;
  }

  get pinned() {
    return this.lanes.pinned;
  }

  /** Whether only a part of the trace is loaded: then nothing is said about all of it. */
  get isPartial() {
    return false;
  }

  setTheme(name) {
    this.themeName = name;
    this.theme = themeOf(name);
    this.colors = this.trace.categories.map((category) => category[name]);
    applyTheme(name);
    this.toolbar.paint(this.colors);
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
    const { lines, height } = this.lanes.layout();
    this.lines = lines;
    this.height = height;
    this.charts = this.lanes.shownCharts;
    drawLaneLabels(this, this.labels);
  }

  /** As the page opens where nothing was set up: for the button that starts anew. */
  begin() {
    this.lanes = new LaneSet(this.trace);
    this.switchOff(new Set());
    this.grouping = "name";
    this.order = "longest";
    this.toolbar.menu.close();
    this.notes.list = [];
    this.notes.start();
    this.clear();
    this.layout();
    this.jumpTo(...this.trace.view);
  }

  async start() {
    this.goTo(...this.trace.view);
    this.panel.place();
    this.notes.start();
    this.followLink();
    if (!this.chosen && !this.selection) this.describe();
    this.draw();
    await this.axis.settle();
    await this.minimap.draw();
    this.minimap.showView();
  }

  measuredWidth() {
    if (this.isPrinting) return PAPER_PX;
    return Math.max(100, Math.round(this.plot.clientWidth - MARGIN.right));
  }

  resize() {
    if (!this.scene || Math.abs(this.scene.width - this.measuredWidth()) <= 2) return;
    this.redraw();
    this.minimap.draw();
  }

  /** Paper has all lanes, as wide as it is; of more than there can be, those in the window. */
  print(isPrinting) {
    this.isPrinting = isPrinting;
    this.draw();
    this.axis.settle();
  }

  scrolled() {
    if (this.scene && !isDrawn(this.band, this.height, lanesInWindow(this.plot))) this.redraw();
    else this.axis.draw();
  }

  changed() {
    if (!this.chosen && !this.selection) this.panel.showView();
    this.redraw();
  }

  /** Draw once in the next frame, however often it is asked for. */
  redraw() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = 0;
    this.width = this.measuredWidth();
    this.band = drawnBand(this.height, lanesInWindow(this.plot), this.isPrinting);
    this.scene = makeScene(this);
    this.areas = this.scene.areas;
    const scale = Math.max(window.devicePixelRatio || 1, this.isPrinting ? 2 : 1);
    this.backdrop.draw(this.scene, figureHeights(this.scene).plot, { scale });
    sizeParts(this);
    this.axis.follow();
    this.toolbar.menu.show();
    this.toolbar.showRange(drawnText(this.scene));
    this.minimap.showView();
    placeSelection(this);
    this.notes.draw();
    if (this.hasAddress) this.address.write();
  }

  /** What the reader does on purpose is an entry of the history; moving about is none. */
  jumped() {
    this.isFollowing = true;
    this.address.jumped();
  }

  jumpTo(from, to) {
    this.goTo(from, to);
    this.jumped();
  }

  say(text) {
    this.toolbar.showFound(text);
  }

  pointerTime() {
    return this.pointer.x === null ? (this.t0 + this.t1) / 2 : this.timeAt(this.pointer.x);
  }

  fit() {
    if (this.selection) this.fitSpan(...this.selection, 0.05);
    else if (this.chosen) this.fitTarget(this.chosen);
    this.jumped();
  }

  fitTarget(target) {
    this.fitSpan(...spanOf(this.trace, target), 0.3);
  }

  clear() {
    this.selection = this.between = null;
    this.clearSearch();
    this.choose(null);
  }

  toggleCategory(category) {
    if (!this.hidden.delete(category)) this.hidden.add(category);
    this.switchOff(this.hidden);
    this.redraw();
  }

  /** Show all categories but these. */
  switchOff(categories) {
    this.hidden = categories;
    this.toolbar.showOff(categories);
  }

  /** Change which lanes are shown or where, and draw them. */
  arrange(change) {
    change(this.lanes);
    this.layout();
    this.redraw();
    if (this.hasAddress) this.address.writeNow();
  }

  /** Among other things the address is the page's until the reader follows one of ours. */
  get hasAddress() {
    return !this.isEmbedded || this.isFollowing;
  }

  toggleGroup(group) {
    this.arrange(({ open }) => open.delete(group) || open.add(group));
  }

  togglePin(row) {
    this.arrange(({ pinned }) => pinned.delete(row) || pinned.add(row));
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

  /** Bring the lane of a target into the window, above the panel where that lies below. */
  showLine(target) {
    const line = lineOfTarget(this.lines, target);
    const node = line && this.labels.querySelector(`[data-key="${CSS.escape(line.key)}"]`);
    node?.scrollIntoView({ block: "nearest" });
  }

  get link() {
    return formatLink(linkOf(this));
  }

  followLink() {
    this.address.reached();
    followAddress(this, location.hash);
  }

  savePicture(format) {
    return this.plotly.downloadImage(makePicture(this), { format, scale: format === "svg" ? 1 : 2, filename: "timeline" });
  }
}

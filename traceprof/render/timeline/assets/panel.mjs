import { recall, remember } from "./storage.mjs";
import { button, element } from "./dom.mjs";
import { contentText } from "./contents.mjs";
import { csvOf, saveText } from "./export.mjs";
import { partNode } from "./panel_parts.mjs";
import { viewContent } from "./describe_view.mjs";

/** The panel beside or below the lanes: what is chosen, in view whatever the page is scrolled to. */

const PANEL_KEY = "traceprof-panel";
const WIDE_ROOM = 1000;
const NARROW_ROOM = 700;
const LEAST = 140;
const TALL_ENOUGH = 480; // for most of what it says
const STEP = 24;
const EDGE_PX = 8;
const REST_MS = 250;

export class Panel {
  /** `about`: what the view shows, and the legend, which stands here while nothing is chosen. */
  constructor(app, root, noteForm, { chips, range }) {
    this.app = app;
    this.root = root;
    this.content = null;
    this.resultParts = [];
    this.timer = 0;
    this.set = { side: "", right: app.trace.beside ? 440 : 350, below: 260, ...recall(PANEL_KEY, {}) };
    this.heading = element("h3", { "aria-live": "polite" });
    this.body = element("div", { cls: "details", tabindex: "0", role: "region", "aria-label": "Details" });
    this.grip = element("div", { cls: "grip", role: "separator", tabindex: "0", "aria-label": "Resize the details panel" });
    this.side = button("", "", () => this.dock(this.isBelow ? "right" : "below"));
    const actions = element(
      "div",
      { cls: "panel-actions", role: "group", "aria-label": "Actions" },
      button("Copy", "Copy as text (C)", () => this.copy()),
      button("Note", "Note: add a note here (B)", () => app.notes.write()),
      button("CSV", "CSV: save these details as a file", () => this.saveTables()),
      button("Zoom", "Zoom to the selection (F)", () => app.fit()),
      this.side,
      button("×", "× Clear the selection (Esc)", () => app.clear()),
    );
    this.node = element("aside", { cls: "panel", "aria-label": "Selection" });
    this.results = element("div", { cls: "results", hidden: "" });
    this.node.append(this.grip, this.results, element("div", { cls: "about" }, actions, noteForm, this.body, chips, range));
    this.listen();
  }

  listen() {
    this.grip.addEventListener("pointerdown", (event) => this.grip.setPointerCapture(event.pointerId));
    this.grip.addEventListener("pointermove", (event) => this.drag(event));
    this.grip.addEventListener("pointerup", () => this.keep());
    this.grip.addEventListener("keydown", (event) => this.nudge(event));
    for (const what of ["scroll", "resize"]) window.addEventListener(what, () => this.place(), { passive: true });
  }

  get isBelow() {
    return (this.set.side || (this.root.clientWidth < WIDE_ROOM ? "below" : "right")) === "below";
  }

  dock(side) {
    this.set.side = side;
    this.keep();
    this.place();
    this.app.resize();
  }

  /**
   * The room that the panel takes: as much as the reader gave it, within what the window shows.
   * Beside the lanes it makes the page no longer as one scrolls: what follows would move away.
   */
  place() {
    const { app, isBelow, node } = this;
    const stage = node.parentElement;
    if (!stage) return;
    stage.classList.toggle("below", isBelow);
    const room = innerHeight - Math.max(EDGE_PX, stage.getBoundingClientRect().top) - EDGE_PX;
    const share = isBelow && this.root.clientWidth < NARROW_ROOM ? 0.3 : 0.6;
    const most = share * (isBelow ? innerHeight : this.root.clientWidth);
    const size = Math.max(LEAST, Math.min(this.set[isBelow ? "below" : "right"], most));
    node.style.setProperty("--panel-size", `${Math.round(size)}px`);
    const tallest = Math.max(app.plot.offsetHeight, TALL_ENOUGH);
    stage.style.minHeight = isBelow ? "" : `${tallest}px`;
    node.style.setProperty("--panel-room", `${Math.max(2 * LEAST, Math.round(Math.min(room, tallest)))}px`);
    const words = isBelow ? "Dock on the right" : "Dock below the lanes";
    this.side.textContent = isBelow ? "◨" : "⬓";
    this.side.title = words;
    this.side.setAttribute("aria-label", words);
    this.grip.setAttribute("aria-orientation", isBelow ? "horizontal" : "vertical");
    this.grip.setAttribute("aria-valuenow", String(Math.round(size)));
    this.grip.setAttribute("aria-valuemin", String(LEAST));
    this.grip.setAttribute("aria-valuemax", String(Math.round(most)));
  }

  drag(event) {
    if (!this.grip.hasPointerCapture(event.pointerId)) return;
    const { right, bottom } = this.node.getBoundingClientRect();
    this.resizeTo(this.isBelow ? bottom - event.clientY : right - event.clientX);
  }

  nudge(event) {
    const grows = { ArrowUp: this.isBelow, ArrowLeft: !this.isBelow };
    const shrinks = { ArrowDown: this.isBelow, ArrowRight: !this.isBelow };
    const by = grows[event.key] ? STEP : shrinks[event.key] ? -STEP : 0;
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    this.resizeTo(this.set[this.isBelow ? "below" : "right"] + by);
    this.keep();
  }

  resizeTo(size) {
    this.set[this.isBelow ? "below" : "right"] = Math.max(LEAST, Math.round(size));
    this.place();
    this.app.resize();
  }

  keep() {
    remember(PANEL_KEY, this.set);
  }

  show(content) {
    clearTimeout(this.timer);
    this.content = content;
    this.heading.textContent = this.heading.title = content.title;
    this.showRest();
    const go = (target) => (typeof target === "function" ? target() : this.app.visit(target));
    const { activeElement } = document;
    const place = this.body.contains(activeElement) ? [...this.body.querySelectorAll("button")].indexOf(activeElement) : -1;
    this.body.replaceChildren(this.heading, ...content.parts.map((part) => partNode(part, go)));
    this.body.scrollTop = 0;
    if (place >= 0) (this.body.querySelectorAll("button")[place] ?? this.body).focus({ preventScroll: true });
  }

  /** On a phone the panel comes up only where there is something to tell: a choice, or what was found. */
  showRest() {
    const { chosen, selection } = this.app;
    this.node.classList.toggle("resting", !chosen && !selection && this.results.hidden);
    this.node.classList.toggle("choosing", Boolean(chosen || selection));
  }

  /** More of the same, that came later. */
  append(parts) {
    if (!this.content || !parts.length) return;
    const { scrollTop } = this.body;
    this.show({ ...this.content, parts: [...this.content.parts, ...parts] });
    this.body.scrollTop = scrollTop;
  }

  /** What a search found, above what is chosen. */
  showResults(parts) {
    this.resultParts = parts;
    const { scrollTop } = this.results.querySelector(".wide") ?? {};
    this.results.hidden = !parts.length;
    this.showRest();
    this.results.replaceChildren(...parts.map((part) => partNode(part, (go) => go())));
    const list = this.results.querySelector(".wide");
    if (list && scrollTop) list.scrollTop = scrollTop;
  }

  /** Nothing is chosen: tell of the view, once it rests. */
  showView() {
    clearTimeout(this.timer);
    this.showRest();
    this.timer = setTimeout(() => this.show(viewContent(this.app)), this.content ? REST_MS : 0);
  }

  saveTables() {
    const parts = [...this.resultParts, ...(this.content?.parts ?? [])];
    saveText(csvOf(parts), "timeline.csv", "text/csv");
  }

  async copy() {
    const text = this.content ? contentText(this.content) : "";
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      copyByHand(text);
    }
    this.app.say("Copied");
  }
}

/** Where the page has no clipboard: select a field and ask the browser. */
function copyByHand(text) {
  const field = element("textarea", { "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

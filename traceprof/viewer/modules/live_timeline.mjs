import { covers, suffices } from "./remote.mjs";
import { findPartner } from "./query.mjs";
import { binsFor } from "./population.mjs";
import { isEvent, locate, placeOf, spanOf } from "./targets.mjs";
import { peersTable, placeAmong, waitParts } from "./describe_event.mjs";
import { Timeline } from "./app.mjs";
import { IN_NO_RANGE, LAUNCH_UNKNOWN } from "./groupings.mjs";
import { MAX_RESULTS } from "./results.mjs";

const NARROWEST_NS = 50;

/** The timeline of a trace that stays on the server: what the view lacks is fetched. */
export class LiveTimeline extends Timeline {
  constructor(root, remote, plotly, theme) {
    super(root, remote.overview, plotly, theme);
    this.remote = remote;
    this.place = null;
    this.waiting = [];
    this.isAskingLit = false;
    new ResizeObserver(() => this.tell("height", document.body.scrollHeight)).observe(root);
  }

  get isPartial() {
    return true;
  }

  get wanted() {
    const { rows, groups } = this.trace;
    const drawn = this.lines.filter(({ type }) => type === "row").map(({ row }) => rows[row].group);
    const shown = new Set([...this.open, ...drawn].filter((group) => groups[group].kind !== "steps"));
    return { t0: this.t0, t1: this.t1, width: this.measuredWidth(), groups: shown };
  }

  /** Whether the picture is as fine as the screen can show. */
  get isSettled() {
    return !this.frame && !this.remote.isBusy && suffices(this.trace, this.wanted, this.overview.duration_ns);
  }

  /** What is there, at once; finer when the server has answered. */
  draw() {
    this.chooseDetail()?.then(() => this.redraw());
    super.draw();
    if (this.remote.hasFailed) {
      this.toolbar.showRange("The viewer is not responding. Check that `traceprof view` is running.");
    }
    this.tell("view", [this.t0, this.t1]);
    this.askLit();
    if (this.isSettled) for (const resolve of this.waiting.splice(0)) resolve();
  }

  /** The address of the page around follows at once, also where nothing is drawn anew. */
  jumped() {
    super.jumped();
    this.tell("view", [this.t0, this.t1]);
  }

  /** Show the best there is; where that is too coarse, the coming of something better. */
  chooseDetail() {
    const { remote, wanted } = this;
    const whole = this.overview.duration_ns;
    if (covers(remote.slice, wanted, whole)) this.show(remote.slice);
    else this.show(this.overview);
    return suffices(this.trace, wanted, whole) ? null : remote.ask(wanted);
  }

  /** What is chosen is described anew by what came, while it is there. */
  show(trace) {
    if (trace === this.trace) return;
    this.trace = trace;
    this.lanes.trace = trace;
    const found = locate(trace, this.place);
    this.chosen = found;
    this.partner = isEvent(found) ? findPartner(trace, found) : null;
    if (found || this.selection) this.describe();
  }

  choose(target) {
    this.place = placeOf(this.trace, target);
    super.choose(target);
  }

  /** What only the server knows of an event follows when it is there. */
  describe() {
    super.describe();
    const { chosen, place } = this;
    if (!isEvent(chosen) || place?.start === undefined || this.trace.rows[chosen.row].kind === "step") return;
    const key = `${place.row} ${place.channel} ${place.start}`;
    if (this.alike?.key !== key) {
      this.alike = { key, parts: [] };
      this.askAlike(place, key);
    } else this.panel.append(this.alike.parts);
  }

  async askAlike(place, key) {
    const answer = await this.remote.alike(place).catch(() => null);
    if (!answer || this.alike.key !== key || !isEvent(this.chosen)) return;
    const { population, peers, matched_by: matchedBy } = answer;
    const [from, to] = spanOf(this.trace, this.chosen);
    if (from !== place.start) return;
    const found = { ...population, ...binsFor(population.min, population.max) };
    const told = peers.map((peer) => ({ ...peer, isOwn: peer.is_own, target: () => this.visitPlace(peer) }));
    this.alike.parts = [
      ...placeAmong(found, to - from),
      ...waitParts(this.trace, this.chosen, told),
      ...peersTable(this.trace, told, from, matchedBy),
    ];
    this.panel.append(this.alike.parts);
  }

  /** The server has all events: it counts and lists those of the names that match. */
  async ask(order) {
    if (this.isHere) return super.ask(order);
    const { matches, kind } = this;
    const more = kind === "kernels" ? { launched: 1 } : {};
    const found = await this.remote.find({ order, limit: MAX_RESULTS, ...more }, matches);
    const { launched_in: ranges, ...told } = found;
    const inWords = (name) => (name === null ? LAUNCH_UNKNOWN : (this.overview.alikes[name] ?? IN_NO_RANGE));
    return { ...told, launchedIn: ranges?.map(inWords) };
  }

  /** Whether what is sought is on the page: steps are nowhere else. */
  get isHere() {
    return this.kind === "steps";
  }

  /** Where matches are in lanes that are folded, and so not loaded: asked once for every view. */
  async askLit() {
    const { t0, t1, width, text, kind, matches } = this;
    const key = [t0, t1, width, text, kind].join(" ");
    if (this.lit && this.lit.matches !== matches) this.lit = null;
    if (!matches || this.isHere || this.lit?.key === key || this.isAskingLit) return;
    this.isAskingLit = true;
    const [from, to] = [Math.floor(t0), Math.ceil(t1)];
    const { lit = {} } = await this.remote.find({ lit_from: from, lit_to: to, width }, matches).catch(() => ({}));
    this.isAskingLit = false;
    const groups = new Map(Object.entries(lit).map(([group, bins]) => [Number(group), new Set(bins)]));
    this.lit = { key, matches, t0: from, binNs: (to - from) / width, groups };
    this.redraw();
  }

  async askPlace(t) {
    if (this.isHere) return super.askPlace(t);
    const { before } = await this.remote.find({ before: Math.round(t) }, this.matches);
    return before;
  }

  goToResult(event) {
    if (this.isHere) super.goToResult(event);
    else this.visitPlace(event);
  }

  stepMatch(direction) {
    if (this.isHere) super.stepMatch(direction);
    if (this.isHere || !this.matches) return;
    const from = this.place?.start ?? (direction > 0 ? this.t0 - 1 : this.t1);
    this.step({ from: Math.round(from), direction }, this.matches);
  }

  /** Of an event of the trace the server knows the next one; the rest is all here. */
  stepEvent(direction) {
    const { place } = this;
    if (place?.row === undefined || place.gap || this.trace.rows[place.row].kind === "step") super.stepEvent(direction);
    else this.step({ row: place.row, from: place.start, direction });
  }

  async step(question, matches = null) {
    const { next } = await this.remote.find(question, matches);
    if (next) await this.visitPlace(next);
  }

  /** The lanes around a target may not be loaded yet: it is chosen again when they are. */
  visit(target) {
    if (!target.gap) this.openFor(target);
    super.visit(target);
  }

  /** Go to an event that may not be loaded yet, and choose it when it is. */
  async visitPlace({ row, channel, start, end }) {
    this.open.add(this.trace.rows[row].group);
    this.layout();
    const isInside = start >= this.t0 && end <= this.t1;
    const length = end - start;
    if (!isInside || length <= 3 * this.binNs) {
      const width = Math.max(length * 8, Math.min(this.t1 - this.t0, length * 400), NARROWEST_NS);
      this.goTo((start + end - width) / 2, (start + end + width) / 2);
    } else this.redraw();
    await new Promise((resolve) => this.waiting.push(resolve));
    const event = locate(this.trace, { row, channel, start });
    if (event) this.choose(event);
  }

  /** The page around has exact tables for any span: they follow the selection. */
  showSelection() {
    super.showSelection();
    if (!this.selection) return;
    const [from, to] = this.selection.map((t) => Math.max(0, Math.round(t + this.trace.offset_ns)));
    this.tell("selection", [from, Math.max(to, from + 1)]);
  }

  tell(what, value) {
    const { pane } = this.root.dataset;
    window.parent.postMessage({ traceprof: what, pane: Number(pane), value }, location.origin);
  }
}

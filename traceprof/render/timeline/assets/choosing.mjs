import { findPartner, nextMatch, pickEvent } from "./query.mjs";
import { gapAt, groupOf, isEvent, isState, isStep, spanOf, stateAt } from "./targets.mjs";
import { counterpartOf } from "./counterparts.mjs";
import { firstAfter, lastBefore, nextEdge } from "./neighbors.mjs";
import { View } from "./view.mjs";
import { eventContent } from "./describe_event.mjs";
import { idleGaps, isIdleGap, isSameGap } from "./gaps.mjs";
import { itemsBetween } from "./channel.mjs";
import { lineAt, visibleRows } from "./lines.mjs";
import { placeSelection } from "./sizing.mjs";
import { spanContent } from "./describe_span.mjs";
import { stateContent } from "./describe_state.mjs";

/** What the reader chose, an event, a state, a gap or a span, and how to get to the next one. */

const NEAR_PX = 1.5;
const MOST_STATES = 2000;

export class Chooser extends View {
  constructor(durationNs) {
    super(durationNs);
    this.chosen = null;
    this.partner = null;
    this.selection = null;
    this.between = null;
    this.launcher = null;
    this.grouping = "name";
  }

  /** What lies under a point of the plot: a target, or null. */
  targetAt(x, y) {
    const line = lineAt(this.lines, y);
    if (line?.type === "row") return this.pick(line.row, x) ?? gapAt(this.trace, line.row, this.timeAt(x));
    return line?.type === "group" ? this.pickState(line.group, x) : null;
  }

  pick(row, x) {
    return pickEvent(this.trace, row, this.timeAt(x), NEAR_PX * this.binNs);
  }

  /** The state that fills most of the pixel: at a coarse zoom many are in it. */
  pickState(group, x) {
    const [from, to] = [this.timeAt(x - NEAR_PX), this.timeAt(x + NEAR_PX)];
    let best = null;
    let most = 0;
    (this.trace.groups[group].states?.channels ?? []).forEach((channel, number) => {
      const [first, last] = itemsBetween(channel, from, to);
      for (let item = first; item < Math.min(last, first + MOST_STATES); item++) {
        const inside = Math.min(channel.ends[item], to) - Math.max(channel.starts[item], from);
        if (inside > most) [most, best] = [inside, { group, channel: number, item }];
      }
    });
    return best ?? stateAt(this.trace, group, this.timeAt(x));
  }

  /** Choose a target, or nothing; a selection of before is given up. */
  choose(target) {
    this.chosen = target;
    this.partner = isEvent(target) ? findPartner(this.trace, target) : null;
    if (target) this.selection = this.between = null;
    this.describe();
    this.jumped();
    this.redraw();
  }

  /** Fill the panel with what is chosen or selected, else with what is in view. */
  describe() {
    const { chosen } = this;
    if (this.selection) this.panel.show(spanContent(this, this.selection, this.between, this.launcher));
    else if (isEvent(chosen)) this.panel.show(eventContent(this, chosen));
    else if (chosen) this.panel.show(stateContent(this, chosen));
    else this.panel.showView();
  }

  /** Choose a target and bring it into view, its lane included. */
  visit(target) {
    if (!isState(target)) this.openFor(target);
    this.layout();
    this.choose(target);
    this.reveal(...spanOf(this.trace, target));
    this.showLine(target);
  }

  openFor(target) {
    const group = groupOf(this.trace, target);
    if (this.trace.groups[group].kind === "steps") return;
    this.open.add(group);
    this.lanes.reveal(group, target.row);
  }

  /** Choose the neighbor of what is chosen in its lane, and bring it into view. */
  stepEvent(direction) {
    const { chosen, trace } = this;
    if (!chosen) return this.chooseFirst();
    if (isState(chosen)) return this.stepState(direction);
    const [start, end] = spanOf(trace, chosen);
    if (chosen.gap) {
      const next = direction > 0 ? firstAfter(trace, [chosen.row], end) : lastBefore(trace, [chosen.row], start);
      return next && this.visit(next);
    }
    const every = { names: new Uint8Array(trace.names.length).fill(1), kinds: null };
    const lane = { ...trace, rows: [trace.rows[chosen.row]] };
    const next = nextMatch(lane, every, start, direction);
    return next && this.visit({ ...next, row: chosen.row });
  }

  stepState(direction) {
    const [start, end] = spanOf(this.trace, this.chosen);
    const next = stateAt(this.trace, this.chosen.group, direction > 0 ? end : start - 1);
    if (next) this.visit(next);
  }

  /** Choose what lies above or below at the same time; of the lanes that are shown. */
  stepLane(direction) {
    if (!this.chosen) return this.chooseFirst();
    const [from, to] = spanOf(this.trace, this.chosen);
    // The time at which the walk began: else each event on the way would move it.
    const t = this.walk?.at === this.chosen ? this.walk.t : Math.max(from, Math.min((from + to) / 2, this.t1));
    const lines = this.lines.filter(({ type }) => type !== "section");
    const own = lines.findIndex((line) =>
      isState(this.chosen) ? line.type === "group" && line.group === this.chosen.group : line.row === this.chosen.row,
    );
    for (let i = own + direction; i >= 0 && i < lines.length; i += direction) {
      const found = this.nearestOnLine(lines[i], t);
      if (!found) continue;
      this.visit(found);
      this.walk = { t, at: found };
      return undefined;
    }
    return undefined;
  }

  nearestOnLine(line, t) {
    if (line.type === "group") return stateAt(this.trace, line.group, t);
    return pickEvent(this.trace, line.row, t, this.trace.duration_ns);
  }

  /** From the name of a lane into it, by keyboard. */
  chooseInLane(line) {
    const found = this.nearestOnLine(line, (this.t0 + this.t1) / 2);
    if (!found) return;
    this.visit(found);
    this.plot.focus({ preventScroll: true });
  }

  chooseFirst() {
    const t = Math.max(0, (this.t0 + this.t1) / 2);
    for (const line of this.lines.filter(({ type, row }) => type !== "section" && this.trace.rows[row]?.kind !== "step")) {
      const found = this.nearestOnLine(line, t);
      if (found) return this.visit(found);
    }
    return undefined;
  }

  /** Choose the longest idle gap in view, of all devices, then the next longest. */
  stepGap() {
    const { trace } = this;
    if (!isIdleGap(trace, this.chosen)) this.gapView = [this.t0, this.t1];
    const gaps = idleGaps(trace, this.gapView);
    const own = isState(this.chosen) ? gaps.findIndex((gap) => isSameGap(trace, gap, this.chosen)) : -1;
    const next = gaps[own + 1] ?? gaps[0];
    if (next) this.visit(next);
  }

  /** From an event to the same one in the other recording. */
  stepSide() {
    const found = this.trace.beside && isEvent(this.chosen) ? counterpartOf(this.trace, this.chosen) : null;
    if (found) this.visit(found.event);
  }

  select(from, to) {
    this.selection = [Math.round(from), Math.max(Math.round(from) + 1, Math.round(to))];
    this.between = this.launcher = null;
    placeSelection(this);
  }

  showSelection() {
    if (!this.selection) return;
    this.chosen = this.partner = null;
    this.describe();
    this.jumped();
    this.redraw();
  }

  /** Select what lies between the chosen target and another one, and measure it; steps are included. */
  measureTo(other) {
    if (!this.chosen || !other) return this.choose(other);
    const [first, second] = [this.chosen, other].sort((a, b) => spanOf(this.trace, a)[0] - spanOf(this.trace, b)[0]);
    const [a0, a1] = spanOf(this.trace, first);
    const [b0, b1] = spanOf(this.trace, second);
    const areSteps = [first, second].every((target) => isStep(this.trace, target));
    if (areSteps) this.select(a0, b1);
    else if (b0 > a1) this.select(a1, b0);
    else this.select(a0, Math.max(b0, a0 + 1));
    this.between = areSteps ? null : [first, second];
    return this.showSelection();
  }

  /** Select the span of what is chosen; without one, what is in view. */
  selectChosen() {
    const { chosen } = this;
    const [from, to] = chosen ? spanOf(this.trace, chosen) : [this.t0, this.t1];
    this.select(Math.max(0, from), Math.min(this.trace.duration_ns, to));
    this.launcher = isEvent(chosen) ? chosen : null;
    this.showSelection();
  }

  /** Move the end of the selection to the next edge of the chosen lane, or of any shown one. */
  extendSelection(direction) {
    if (!this.selection) {
      this.lane = this.chosen?.row;
      this.selectChosen();
    }
    const [from, to] = this.selection;
    const rows = this.lane === undefined ? visibleRows(this.lines) : [this.lane];
    const edge = nextEdge(this.trace, rows, to, direction);
    if (edge === null || edge <= from) return;
    this.select(from, edge);
    this.showSelection();
    if (edge > this.t1) this.pan((edge - this.t1) / (this.t1 - this.t0) + 0.1);
  }

  groupBy(grouping) {
    this.grouping = grouping;
    this.describe();
  }
}

import { areMeant, compileSearch, findMatches } from "./matching.mjs";
import { countBefore, findResults, isChosenEvent, laneResults, resultParts } from "./results.mjs";
import { idleWithin, ownGap } from "./gaps.mjs";
import { isEvent, spanOf } from "./targets.mjs";
import { Chooser } from "./choosing.mjs";
import { formatCount } from "./format.mjs";
import { keyFunction } from "./groupings.mjs";
import { nextMatch } from "./query.mjs";
import { spanOfSteps } from "./steps.mjs";

/** Looking for events by name: all of them lit up, listed, and gone through in the order of time. */
export class Searcher extends Chooser {
  constructor(durationNs) {
    super(durationNs);
    this.text = "";
    this.kind = "";
    this.query = null;
    this.matches = null;
    this.results = null;
    this.places = [];
    this.order = "longest";
    this.asked = 0;
    this.steps = null;
    this.listing = null;
  }

  /** Search for text among events of a kind (`SOUGHT`), by default as before. */
  async search(text, kind = this.kind) {
    this.text = text;
    this.kind = kind;
    this.steps = spanOfSteps(this.trace, text);
    this.query = this.steps ? null : compileSearch(text, kind);
    this.matches = this.query && !this.query.error ? findMatches(this.trace, this.query, kind) : null;
    this.redraw();
    this.listing = this.list();
    await this.listing;
  }

  /** What there is of the matches; overridden where the trace is elsewhere. */
  ask(order) {
    const found = findResults(this.trace, this.matches, order);
    if (this.kind !== "kernels") return found;
    this.rangeOf ??= keyFunction(this.trace, "range");
    return { ...found, launchedIn: found.list.map(({ row, channel, item }) => this.rangeOf(row, channel, item)) };
  }

  /** The place of an instant among the matches, from 0. */
  askPlace(t) {
    return countBefore(this.trace, this.matches, t);
  }

  async list() {
    const number = ++this.asked;
    if (!this.matches) {
      this.results = null;
      this.places = [];
      this.toolbar.showFound(this.steps ? "Enter selects these steps" : (this.query?.error ?? ""));
      this.showResults();
      return;
    }
    const results = await this.ask(this.order);
    if (number !== this.asked) return;
    this.results = results;
    this.places = this.lanes.groupsNamed(this.text);
    this.toolbar.showFound(this.foundWords);
    this.showResults();
  }

  showResults() {
    const sort = (order) => {
      this.order = order;
      this.list();
    };
    const go = (event) => this.goToResult(event);
    const parts = this.results ? resultParts(this, this.query, this.results, this.order, sort, go) : [];
    const lanes = laneResults(this.trace, this.places, (place) => this.goToLane(place));
    this.panel.showResults(this.places.length ? [...lanes, ...(this.results?.count ? parts : [])] : parts);
  }

  /** Open a rank or a device that the text names, and describe what its device does in view. */
  goToLane(place) {
    this.open.add(place);
    this.lanes.reveal(place);
    this.layout();
    const { states } = this.trace.groups[place];
    const gap = states && (ownGap(this.trace, place, this.t0, this.t1) ?? idleWithin(this.trace, place, this.t0, this.t1));
    this.choose(gap);
    this.showLine({ group: place });
    this.redraw();
  }

  get foundWords() {
    const { count, mergedCount = 0 } = this.results;
    const events = count + mergedCount;
    const lanes = this.places.length;
    const named = lanes ? `${formatCount(lanes)} lane${lanes > 1 ? "s" : ""}` : "";
    return [named, events || !lanes ? `${formatCount(events)} events` : ""].filter(Boolean).join(", ");
  }

  goToResult({ row, channel, item }) {
    this.visit({ row, channel, item });
  }

  /** Enter in the field: select the steps that it names, else go to the next of the list. */
  async enter(direction) {
    if (this.steps) {
      this.select(...this.steps);
      this.showSelection();
      this.fit();
      return undefined;
    }
    await this.listing;
    const list = this.results?.list ?? [];
    if (!list.length && this.places.length) return this.goToLane(this.places[0]);
    if (!list.length) return undefined;
    const own = list.findIndex((event) => isChosenEvent(this, event));
    this.goToResult(list[own < 0 && direction < 0 ? list.length - 1 : (own + direction + list.length) % list.length]);
    return undefined;
  }

  stepMatch(direction) {
    if (!this.matches) return;
    const from = isEvent(this.chosen) ? spanOf(this.trace, this.chosen)[0] : direction > 0 ? this.t0 - 1 : this.t1;
    const next = nextMatch(this.trace, this.matches, from, direction);
    if (next) this.visit(next);
  }

  choose(target) {
    super.choose(target);
    if (this.results) this.showResults();
    this.showPlace();
  }

  /** "3 of 594" while a match is chosen. */
  async showPlace() {
    const { chosen, results, matches } = this;
    if (!results) return;
    const { count, mergedCount = 0 } = results;
    const all = formatCount(count + mergedCount);
    if (!matches || !isEvent(chosen) || !this.isMatch(chosen)) {
      this.toolbar.showFound(this.foundWords);
      return;
    }
    const place = await this.askPlace(spanOf(this.trace, chosen)[0]);
    if (this.chosen === chosen && this.results === results) {
      const among = mergedCount ? `${formatCount(count)} unmerged` : all;
      this.toolbar.showFound(`${formatCount(place + 1)} of ${among}`);
    }
  }

  isMatch({ row, channel, item }) {
    const { kind, channels } = this.trace.rows[row];
    return areMeant(this.matches, { kind }) && Boolean(this.matches.names[channels[channel].names[item]]);
  }

  clearSearch() {
    this.searchFor("");
  }

  /** Search, and say so where one types. */
  searchFor(text, kind = "") {
    this.toolbar.search.value = text;
    this.toolbar.kind.value = kind;
    this.search(text, kind);
  }
}

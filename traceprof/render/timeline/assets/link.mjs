import { lanesOfWords, wordsOfLanes } from "./lane_words.mjs";
import { SOUGHT } from "./matching.mjs";
import { placeOf } from "./targets.mjs";
import { spanOfSteps } from "./steps.mjs";

/**
 * The address names what is shown, so that it can be sent to somebody: `#at=START..END`, and where
 * there is such a thing `sel` (selected span), `event` (what is chosen), `find`, `among`, `folds`,
 * `pin`, and how lanes are arranged (`lane_words.mjs`).
 * Links from findings carry `mark` (the span meant), `rank` and `device`, of two recordings also `side`
 * (0 or 1). Times are ns on the
 * clock of the trace; a span may be given as steps: `step:3..5`.
 */

const SPAN = /^(-?\d{1,17})\.\.(-?\d{1,17})$/;
const PLACES = {
  event: /^R(\d{1,9})@(-?\d{1,17})$/,
  gap: /^([RG])(\d{1,9})@(-?\d{1,17})\.\.(-?\d{1,17})$/,
  state: /^G(\d{1,9})@(-?\d{1,17})$/,
};
const LONGEST = 200;

export function parseLink(hash, trace, charts = []) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const at = parseSpan(given.get("at"), trace);
  if (!at) return null;
  return {
    at,
    selection: parseSpan(given.get("sel"), trace),
    mark: parseSpan(given.get("mark"), trace),
    place: parsePlace(given.get("event") ?? "", trace),
    notes: given.get("notes"),
    find: (given.get("find") ?? "").slice(0, LONGEST),
    kind: SOUGHT.some(([kind]) => kind === given.get("among")) ? given.get("among") : "",
    folds: given.get("folds"),
    pins: numbersIn(given.get("pin")).filter((row) => trace.rows[row]),
    ranks: numbersIn(given.get("rank")),
    devices: numbersIn(given.get("device")),
    sides: numbersIn(given.get("side")),
    lanes: lanesOfWords(trace, charts, given),
  };
}

const numbersIn = (text) => (text ?? "").split(".").filter((part) => /^\d{1,9}$/.test(part)).map(Number);

export function parseSpan(text, trace) {
  const steps = spanOfSteps(trace, text ?? "");
  if (steps) return steps;
  const match = SPAN.exec(text ?? "");
  if (!match) return null;
  const [from, to] = [Number(match[1]) - trace.offset_ns, Number(match[2]) - trace.offset_ns];
  return to > from ? [from, to] : null;
}

export function parsePlace(text, trace) {
  const [event, gap, state] = [PLACES.event.exec(text), PLACES.gap.exec(text), PLACES.state.exec(text)];
  const number = Number(event?.[1] ?? gap?.[2] ?? state?.[1]);
  const isLane = event || gap?.[1] === "R";
  if (!(isLane ? trace.rows : trace.groups)[number]) return null;
  const where = isLane ? { row: number } : { group: number };
  const at = (ns) => Number(ns) - trace.offset_ns;
  if (gap) return { ...where, gap: [at(gap[3]), at(gap[4])] };
  return { ...where, start: at((event ?? state)[2]) };
}

/** The address of what `app` shows; of a span alone where nothing else is given. */
export function formatLink({ t0, t1, trace, selection, place, text, kind, lanes, hidden, notes }) {
  const at = (t) => Math.round(t + trace.offset_ns);
  const span = ([from, to]) => `${at(from)}..${at(to)}`;
  const folds = lanes?.folds ?? null;
  const words = [
    ["at", span([t0, t1])],
    ["sel", selection ? span(selection) : ""],
    ["event", place ? formatPlace(place, at, span) : ""],
    ["find", text ? encodeURIComponent(text) : ""],
    ["among", kind],
    ["folds", folds === "" ? "none" : folds],
    ["notes", notes ?? ""],
    ["pin", lanes ? [...lanes.pinned].join(".") : ""],
    ...(lanes ? wordsOfLanes(trace, lanes, hidden) : []),
  ];
  const given = words.filter(([, value]) => value).map((word) => word.join("="));
  return `#${given.join("&")}`;
}

/** Notes as one word: `START..END,PLACE,TEXT`, with `|` between them; the text is encoded twice. */
export function formatNotes(list, trace) {
  const at = (t) => Math.round(t + trace.offset_ns);
  const span = ([from, to]) => `${at(from)}..${at(to)}`;
  const words = list.map(({ from, to, place, text }) => {
    const where = place ? formatPlace(place, at, span) : "";
    return `${span([from, to])},${where},${encodeURIComponent(encodeURIComponent(text))}`;
  });
  return words.join("|");
}

function formatPlace(place, at, span) {
  const lane = place.row === undefined ? `G${place.group}` : `R${place.row}`;
  return `${lane}@${place.gap ? span(place.gap) : at(place.start)}`;
}

/** The address in step with the page: what the reader jumps to is an entry of the history. */
export class Address {
  constructor(app) {
    this.app = app;
    this.timer = 0;
    this.isJump = false;
    this.known = location.hash;
  }

  /** The page knows where the browser has gone, by a link or through the history. */
  reached() {
    this.known = location.hash;
  }

  jumped() {
    this.isJump = true;
    this.write();
  }

  /** The next writing is of what the address itself asked for. */
  followed() {
    clearTimeout(this.timer);
    this.isJump = false;
  }

  write() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.writeNow(), 300);
  }

  writeNow() {
    clearTimeout(this.timer);
    const { app } = this;
    const link = formatLink(linkOf(app));
    const { isJump } = this;
    this.isJump = false;
    // A link was clicked and its event is still to come: writing now would lose where it leads to.
    if (link === location.hash || location.hash !== this.known) return;
    try {
      if (isJump) history.pushState(null, "", link);
      else history.replaceState(null, "", link);
      this.reached();
    } catch {
      // A sandboxed frame has no address of its own.
    }
  }
}

export function linkOf({ t0, t1, trace, selection, chosen, text, kind, lanes, hidden, notes }) {
  return { t0, t1, trace, selection, place: placeOf(trace, chosen), text, kind, lanes, hidden, notes: notes.words };
}

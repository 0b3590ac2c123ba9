import { button, element } from "./dom.mjs";
import { formatDuration } from "./format.mjs";
import { formatNotes, parsePlace, parseSpan } from "./link.mjs";
import { locate, placeOf, spanOf } from "./targets.mjs";
import { recall, remember } from "./storage.mjs";
import { sinceStart } from "./clock.mjs";

/**
 * What the reader wrote at places of the timeline: {from, to, place, text}. Notes are in the address,
 * so that they can be sent, and kept by the browser for this trace.
 */

const NOTES_KEY = "traceprof-notes";
const MOST_TRACES = 20;
export const MOST_NOTES = 50;
const LONGEST_NOTE = 200;
const NARROW_NOTE = 0.02;

/** Without what could disguise or move other text, and not endless: it may be somebody else's. */
export const plainNote = (text) => text.replace(/[\p{C}\p{Zl}\p{Zp}]+/gu, " ").trim().slice(0, LONGEST_NOTE);

export class Notes {
  constructor(app) {
    this.app = app;
    this.list = [];
    this.about = null;
    this.flags = element("div", { cls: "flags" });
    this.input = element("input", { type: "text", maxlength: String(LONGEST_NOTE), "aria-label": "Note" });
    this.form = element("form", { cls: "note-form", hidden: "" }, this.input, button("Save", "", () => this.keep()));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.keep();
    });
    this.input.addEventListener("keydown", (event) => event.key === "Escape" && this.close());
  }

  /** Of the trace: two recordings may have the same lanes. */
  get page() {
    const { lanes, overview } = this.app;
    return [lanes.page, overview.duration_ns, overview.n_events].join(" ");
  }

  /** Those that the browser kept; those of an address come to them. */
  start() {
    const kept = recall(NOTES_KEY, {})[this.page];
    this.add(Array.isArray(kept) ? kept.filter((note) => note && isNote(note)) : []);
  }

  add(notes) {
    const known = new Set(this.list.map(noteKey));
    const fresh = notes.map((note) => ({ ...note, text: plainNote(note.text) })).filter((note) => !known.has(noteKey(note)));
    this.list = [...this.list, ...fresh].slice(-MOST_NOTES).sort((a, b) => a.from - b.from);
  }

  /** Ask for the text of a note at what is chosen or selected, else at what is in view. */
  write() {
    const { app } = this;
    const [from, to] = app.selection ?? (app.chosen ? spanOf(app.trace, app.chosen) : [app.t0, app.t1]);
    const place = app.selection ? null : placeOf(app.trace, app.chosen);
    this.about = { from: Math.round(from), to: Math.max(Math.round(to), Math.round(from) + 1), place };
    this.form.hidden = false;
    this.input.value = "";
    this.input.placeholder = app.selection ? "Note on the selection" : app.chosen ? "Note on this event" : "Note on this view";
    this.input.focus();
  }

  close() {
    this.form.hidden = true;
    this.app.plot.focus({ preventScroll: true });
  }

  keep() {
    const text = plainNote(this.input.value);
    if (text && this.about) this.change([...this.list, { ...this.about, text }].slice(-MOST_NOTES));
    this.close();
  }

  remove(note) {
    this.change(this.list.filter((other) => other !== note));
  }

  change(list) {
    this.list = list.sort((a, b) => a.from - b.from);
    const others = Object.entries(recall(NOTES_KEY, {})).filter(([page]) => page !== this.page);
    remember(NOTES_KEY, Object.fromEntries([...others.slice(1 - MOST_TRACES), [this.page, this.list]]));
    this.app.jumped();
    this.app.describe();
    this.draw();
  }

  /** Show what a note is about: its event is chosen, its span selected, its view shown. */
  go({ from, to, place }) {
    const { app } = this;
    const target = place && locate(app.trace, place);
    if (target) app.visit(target);
    else if (place?.row !== undefined && app.visitPlace) app.visitPlace({ ...place, end: to });
    else app.jumpTo(from, to);
  }

  /** A flag at each that is in view. */
  draw() {
    const { app } = this;
    const shown = this.list.filter(({ from, to }) => to > app.t0 && from < app.t1);
    this.flags.replaceChildren(...shown.map((note) => this.flag(note)));
  }

  flag(note) {
    const { app } = this;
    const isNarrow = note.to - note.from < NARROW_NOTE * (app.t1 - app.t0);
    const t = isNarrow ? (note.from + note.to) / 2 : Math.max(note.from, app.t0);
    const words = element("span", { text: note.text });
    const node = element("button", { type: "button", cls: "flag", title: note.text }, "⚑ ", words);
    node.style.left = `${Math.min(app.width - 20, Math.max(0, app.xOf(t)))}px`;
    node.addEventListener("click", () => this.go(note));
    return node;
  }

  /** The list of them, for the panel; null while there is none. */
  get part() {
    if (!this.list.length) return null;
    const { trace } = this.app;
    const group = trace.groups.length ? 0 : null;
    const rows = this.list.map((note) => ({
      text: note.text,
      about: group === null ? "" : formatDuration(sinceStart(trace, group, note.from)),
      go: () => this.go(note),
      remove: () => this.remove(note),
    }));
    return { type: "notes", caption: "Notes (press B to add a note)", rows };
  }

  /** As the address has them. */
  get words() {
    return formatNotes(this.list, this.app.trace);
  }
}

const noteKey = ({ from, to, text }) => `${from} ${to} ${text}`;

function isNote({ from, to, text }) {
  return Number.isFinite(from) && Number.isFinite(to) && to > from && typeof text === "string";
}

/** The notes of an address; what is none is left out. */
export function parseNotes(text, trace) {
  const found = (text ?? "").split("|").slice(0, MOST_NOTES).map((word) => {
    const [span, place, ...written] = word.split(",");
    const at = parseSpan(span, trace);
    const plain = plainNote(decodeText(written.join(",")));
    return at && plain ? { from: at[0], to: at[1], place: parsePlace(place, trace), text: plain } : null;
  });
  return found.filter(Boolean);
}

function decodeText(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

import { addSteps } from "./steps.mjs";
import { decodeTrace } from "./decode.mjs";

/** What the server has of one trace, fetched as it is needed: at most one view at a time. */
export class Remote {
  constructor(pane) {
    this.pane = pane;
    this.overview = null;
    this.slice = null;
    this.isBusy = false;
    this.hasFailed = false;
    this.question = "";
    this.requests = 0;
  }

  async start() {
    this.overview = addSteps(decodeTrace(await this.bytes("overview", {})));
    this.slice = this.overview;
    return this.overview;
  }

  /** Fetch the view: a promise of it, or null while another one is on its way or this one failed. */
  ask({ t0, t1, width, groups }) {
    const question = { start: Math.floor(t0), end: Math.ceil(t1), width, groups: [...groups].join(",") };
    const isTheSame = JSON.stringify(question) === this.question;
    if (this.isBusy || (this.hasFailed && isTheSame)) return null;
    this.question = JSON.stringify(question);
    this.isBusy = true;
    this.requests += 1;
    return this.fetch(question);
  }

  async fetch(question) {
    try {
      const slice = decodeTrace(await this.bytes("view", question));
      const { names, shorts, alikes, samples } = this.overview;
      this.slice = addSteps({ ...this.overview, ...slice, names, shorts, alikes, samples });
      this.hasFailed = false;
    } catch {
      this.hasFailed = true;
    }
    this.isBusy = false;
  }

  /** Ask about all events, or those that `matches` (as of `findMatches`). */
  async find(question, matches = null) {
    const kinds = matches?.kinds ? { kinds: [...matches.kinds].join(",") } : {};
    const response = await this.get("find", { ...question, ...kinds }, matches && packBits(matches.names));
    return response.json();
  }

  /** All events of the name of one, and the same on other ranks. */
  async alike({ row, channel, start }) {
    const response = await this.get("alike", { row, channel, start });
    return response.json();
  }

  async bytes(what, question) {
    const response = await this.get(what, question);
    return new Uint8Array(await response.arrayBuffer());
  }

  async get(what, question, body = null) {
    const options = body ? { method: "POST", body } : {};
    const response = await fetch(`/data/${this.pane}/${what}?${new URLSearchParams(question)}`, options);
    if (!response.ok) throw new Error(`the viewer returned HTTP status ${response.status}`);
    return response;
  }
}

/** Eight names a byte, the first in its lowest bit; names of steps, which only the page has, left out. */
function packBits(matches) {
  const bits = new Uint8Array(Math.ceil(matches.length / 8));
  matches.forEach((is, i) => (bits[i >> 3] |= is << (i & 7)));
  return bits;
}

/** Whether the slice has all that there is to see of the view, however coarse. */
export function covers(slice, { t0, t1, groups }, durationNs) {
  const [from, to] = slice.loaded;
  const isInside = from <= Math.max(0, t0) && to >= Math.min(durationNs, t1);
  return isInside && [...groups].every((group) => slice.shown.includes(group));
}

/** Whether it has it as finely as the screen can show it (the server rounds times outwards). */
export function suffices(slice, view, durationNs) {
  return covers(slice, view, durationNs) && slice.bin_ns <= (1.01 * (view.t1 - view.t0)) / view.width;
}

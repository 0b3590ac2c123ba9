/** The span of the trace that is on the screen: [t0, t1) over `width` pixels. */

const NARROWEST_NS = 50;
const OVERHANG = 0.02;

export class View {
  constructor(durationNs) {
    this.durationNs = durationNs;
    this.t0 = 0;
    this.t1 = durationNs;
    this.width = 100;
  }

  /** Called after every change of the span. */
  changed() {}

  get binNs() {
    return (this.t1 - this.t0) / this.width;
  }

  timeAt(x) {
    return this.t0 + x * this.binNs;
  }

  xOf(t) {
    return (t - this.t0) / this.binNs;
  }

  /** Show [from, to): never wider than the trace, narrower than 50 ns or far outside. */
  goTo(from, to) {
    const whole = this.durationNs;
    const width = Math.max(Math.min(NARROWEST_NS, whole), Math.min(to - from, whole));
    const start = width === to - from ? from : (from + to - width) / 2;
    const spare = width < whole ? OVERHANG * width : 0;
    this.t0 = Math.max(0 - spare, Math.min(start, whole - width + spare));
    this.t1 = this.t0 + width;
    this.changed();
  }

  /** Make the span `factor` times as wide; the instant `center` stays where it is. */
  zoom(factor, center) {
    this.goTo(center - (center - this.t0) * factor, center + (this.t1 - center) * factor);
  }

  /** Move by a part of the width. */
  pan(part) {
    const by = (this.t1 - this.t0) * part;
    this.goTo(this.t0 + by, this.t1 + by);
  }

  /** Show [from, to) with `margin` of its width on either side. */
  fitSpan(from, to, margin) {
    const width = Math.max(NARROWEST_NS, to - from);
    const center = (from + to) / 2;
    this.goTo(center - width * (0.5 + margin), center + width * (0.5 + margin));
  }

  /** Bring [from, to) into view: as it is if it is there and big enough, else closer. */
  reveal(from, to) {
    const duration = to - from;
    const isInside = from >= this.t0 && to <= this.t1;
    if (isInside && duration > 3 * this.binNs) return;
    const width = Math.max(duration * 8, Math.min(this.t1 - this.t0, duration * 400), NARROWEST_NS);
    this.goTo((from + to - width) / 2, (from + to + width) / 2);
  }
}

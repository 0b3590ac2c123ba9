import { describePoint } from "./tooltip.mjs";
import { snapTime } from "./snap.mjs";

/** Wheel, drag, Shift + drag, click and hover on the lanes; with fingers drag, pinch, long press. */

const CLICK_PX = 3;
const TOUCH_PX = 8;
const ZOOM_PER_PX = 0.0028;
const LONG_PRESS_MS = 450;

export class Pointer {
  constructor(app, node) {
    this.app = app;
    this.node = node;
    this.x = null;
    this.y = null;
    this.drag = null;
    this.touches = new Map();
    this.pinch = null;
    node.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    node.addEventListener("pointerdown", (event) => this.down(event));
    node.addEventListener("pointermove", (event) => this.move(event));
    node.addEventListener("pointerup", (event) => this.up(event));
    node.addEventListener("pointercancel", (event) => this.up(event));
    node.addEventListener("pointerleave", () => this.app.hideHover());
    node.addEventListener("contextmenu", (event) => this.drag?.isTouch && event.preventDefault());
    node.addEventListener("dblclick", () => this.zoomToTarget());
  }

  at(event) {
    const { left, top } = this.node.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  wheel(event) {
    const { app } = this;
    if (!app.isAttended && !event.ctrlKey) return;
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    event.preventDefault();
    if (sideways) {
      const by = (event.deltaX || event.deltaY) * app.binNs;
      app.goTo(app.t0 + by, app.t1 + by);
      return;
    }
    const turned = Math.max(-120, Math.min(120, event.deltaY));
    app.zoom(Math.exp(turned * ZOOM_PER_PX), app.timeAt(this.at(event)[0]));
  }

  down(event) {
    if (event.button !== 0) return;
    const [x, y] = this.at(event);
    this.node.setPointerCapture(event.pointerId);
    this.app.plot.focus({ preventScroll: true });
    this.app.hideHover();
    const isTouch = event.pointerType === "touch";
    if (isTouch) this.touches.set(event.pointerId, x);
    if (this.touches.size === 2) return this.beginPinch();
    this.drag = { x, y, t0: this.app.t0, t1: this.app.t1, selects: event.shiftKey, moved: false, isTouch };
    if (isTouch) this.press = setTimeout(() => this.longPress(), LONG_PRESS_MS);
    return undefined;
  }

  /** The finger rests: what it draws from here on is a selection. */
  longPress() {
    const { drag } = this;
    if (!drag || drag.moved) return;
    drag.selects = true;
    drag.isLong = true;
    const t = this.app.timeAt(drag.x);
    this.app.select(t - 2 * this.app.binNs, t + 2 * this.app.binNs);
  }

  /** The instants under both fingers stay under them. */
  beginPinch() {
    clearTimeout(this.press);
    this.drag = null;
    this.pinch = [...this.touches.values()].map((x) => this.app.timeAt(x));
  }

  pinchTo() {
    const [a, b] = [...this.touches.values()];
    const [ta, tb] = this.pinch;
    if (Math.abs(b - a) < TOUCH_PX || tb === ta) return;
    const perPixel = Math.abs((tb - ta) / (b - a));
    const { width } = this.app;
    this.app.goTo(ta - a * perPixel, ta + (width - a) * perPixel);
  }

  move(event) {
    const [x, y] = this.at(event);
    this.x = x;
    this.y = y;
    if (this.touches.has(event.pointerId)) this.touches.set(event.pointerId, x);
    if (this.pinch) this.pinchTo();
    else if (this.drag) this.dragTo(x, y);
    else this.app.showHover(x, describePoint(this.app, x, y), event);
  }

  dragTo(x, y) {
    const { app, drag } = this;
    if (Math.abs(x - drag.x) > (drag.isTouch ? TOUCH_PX : CLICK_PX)) drag.moved = true;
    if (!drag.moved) return;
    clearTimeout(this.press);
    if (drag.selects) {
      const times = [snapTime(app, drag.x, drag.y), snapTime(app, x, y)];
      app.select(Math.min(...times), Math.max(...times));
      return;
    }
    this.node.classList.add("panning");
    const by = (drag.x - x) * app.binNs;
    app.goTo(drag.t0 + by, drag.t1 + by);
  }

  up(event) {
    const { drag } = this;
    clearTimeout(this.press);
    this.touches.delete(event.pointerId);
    if (this.touches.size < 2) this.pinch = null;
    this.drag = null;
    this.node.classList.remove("panning");
    if (!drag || event.type !== "pointerup") return;
    if (drag.moved && drag.selects) this.app.showSelection();
    else if (drag.isLong) this.selectUnder(drag);
    else if (!drag.moved) this.tap(drag);
  }

  tap({ x, y, selects }) {
    const target = this.app.targetAt(x, y);
    if (selects) this.app.measureTo(target);
    else this.app.choose(target);
  }

  /** A long press on something selects its span. */
  selectUnder({ x, y }) {
    this.app.selection = null;
    this.app.choose(this.app.targetAt(x, y));
    this.app.selectChosen();
  }

  zoomToTarget() {
    const target = this.app.targetAt(this.x, this.y);
    if (target) this.app.fitTarget(target);
  }
}

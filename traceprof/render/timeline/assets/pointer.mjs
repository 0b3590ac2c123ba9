import { describePoint } from "./tooltip.mjs";
import { snapTime } from "./snap.mjs";

/** Wheel, drag, Shift + drag, click and hover on the lanes. */

const CLICK_PX = 3;
const ZOOM_PER_PX = 0.0028;

export class Pointer {
  constructor(app, node) {
    this.app = app;
    this.node = node;
    this.x = null;
    this.y = null;
    this.drag = null;
    node.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    node.addEventListener("pointerdown", (event) => this.down(event));
    node.addEventListener("pointermove", (event) => this.move(event));
    node.addEventListener("pointerup", (event) => this.up(event));
    node.addEventListener("pointercancel", (event) => this.up(event));
    node.addEventListener("pointerleave", () => this.app.hideHover());
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
    this.drag = { x, y, t0: this.app.t0, t1: this.app.t1, selects: event.shiftKey, moved: false };
    this.app.hideHover();
  }

  move(event) {
    const [x, y] = this.at(event);
    this.x = x;
    this.y = y;
    if (this.drag) this.dragTo(x, y);
    else this.app.showHover(x, describePoint(this.app, x, y), event);
  }

  dragTo(x, y) {
    const { app, drag } = this;
    if (Math.abs(x - drag.x) > CLICK_PX) drag.moved = true;
    if (!drag.moved) return;
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
    this.drag = null;
    this.node.classList.remove("panning");
    if (!drag || event.type !== "pointerup") return;
    if (drag.moved && drag.selects) this.app.showSelection();
    else if (!drag.moved) {
      const target = this.app.targetAt(drag.x, drag.y);
      if (drag.selects) this.app.measureTo(target);
      else this.app.choose(target);
    }
  }

  zoomToTarget() {
    const target = this.app.targetAt(this.x, this.y);
    if (target) this.app.fitTarget(target);
  }
}

import { describePoint } from "./tooltip.mjs";
import { lineAt } from "./lines.mjs";

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
    node.addEventListener("dblclick", () => this.zoomToEvent());
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
    if (this.drag) this.dragTo(x);
    else this.app.showHover(x, describePoint(this.app, x, y), event);
  }

  dragTo(x) {
    const { app, drag } = this;
    if (Math.abs(x - drag.x) > CLICK_PX) drag.moved = true;
    if (!drag.moved) return;
    if (drag.selects) {
      const times = [app.timeAt(drag.x), app.timeAt(x)];
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
    if (!drag.moved) this.app.choose(this.eventAt(drag.x, drag.y));
    else if (drag.selects) this.app.showSelection();
  }

  eventAt(x, y) {
    const line = lineAt(this.app.lines, y);
    return line?.type === "row" ? this.app.pick(line.row, x) : null;
  }

  zoomToEvent() {
    const event = this.eventAt(this.x, this.y);
    if (event) this.app.fitEvent(event);
  }
}

import { MARGIN } from "./figure.mjs";
import { edges, meanStates, stackTraces } from "./areas.mjs";
import { element } from "./dom.mjs";
import { occupancyByCategory } from "./occupancy.mjs";

/** The whole trace in one strip, with a brush that shows and moves the view. */

const HEIGHT = 46;
const GRIP_PX = 7;
const RIGHT = MARGIN.right;

export class Minimap {
  constructor(app) {
    this.app = app;
    this.plot = element("div");
    this.brush = element("div", { cls: "brush" });
    this.box = element("div", { cls: "box" }, this.plot, this.brush);
    this.node = element("div", { cls: "mini" }, element("div", { cls: "lab", text: "Overview" }), this.box);
    this.drag = null;
    this.width = 50;
    this.box.addEventListener("pointerdown", (event) => this.begin(event));
    this.box.addEventListener("pointermove", (event) => this.move(event));
    this.box.addEventListener("pointerup", (event) => this.end(event));
    this.box.addEventListener("pointercancel", () => (this.drag = null));
  }

  draw() {
    const { overview: trace, colors } = this.app;
    this.width = Math.max(50, this.box.clientWidth - RIGHT);
    const nBins = Math.max(1, Math.round(this.width / 2));
    const bins = { t0: 0, binNs: trace.duration_ns / nBins, nBins };
    const layers = overviewLayers(trace, bins);
    const data = stackTraces(layers, edges(bins), colors, 1, "y");
    const layout = {
      width: this.width + RIGHT,
      height: HEIGHT,
      margin: { l: 0, r: RIGHT, t: 3, b: 1 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      showlegend: false,
      xaxis: { range: [0, trace.duration_ns], visible: false, fixedrange: true },
      yaxis: { range: [0, 1], visible: false, fixedrange: true },
    };
    return this.app.plotly.react(this.plot, data, layout, this.app.plotlyConfig);
  }

  showView() {
    const { t0, t1, trace } = this.app;
    const at = (t) => (Math.max(0, Math.min(t, trace.duration_ns)) / trace.duration_ns) * this.width;
    this.brush.style.left = `${at(t0)}px`;
    this.brush.style.width = `${Math.max(3, at(t1) - at(t0))}px`;
  }

  begin(event) {
    const x = this.xOf(event);
    const { t0, t1 } = this.app;
    this.box.setPointerCapture(event.pointerId);
    this.drag = { x, t0, t1, grip: this.gripAt(x) };
  }

  gripAt(x) {
    const { t0, t1, trace } = this.app;
    if (t1 - t0 >= trace.duration_ns * 0.999) return "new";
    const left = this.brush.offsetLeft;
    const right = left + this.brush.offsetWidth;
    if (Math.abs(x - left) < GRIP_PX) return "left";
    if (Math.abs(x - right) < GRIP_PX) return "right";
    return x > left && x < right ? "all" : "new";
  }

  move(event) {
    if (!this.drag) return;
    const { x: from, t0, t1, grip } = this.drag;
    const x = this.xOf(event);
    const moved = this.timeAt(x) - this.timeAt(from);
    if (grip === "all") this.app.goTo(t0 + moved, t1 + moved);
    else if (grip === "left") this.app.goTo(Math.min(t0 + moved, t1 - 1), t1);
    else if (grip === "right") this.app.goTo(t0, Math.max(t1 + moved, t0 + 1));
    else if (Math.abs(x - from) > 3) {
      this.app.goTo(Math.min(this.timeAt(from), this.timeAt(x)), Math.max(this.timeAt(from), this.timeAt(x)));
    }
  }

  /** A click outside the brush moves the view there. */
  end(event) {
    const drag = this.drag;
    this.drag = null;
    if (!drag || drag.grip !== "new" || Math.abs(this.xOf(event) - drag.x) > 3) return;
    const { t0, t1, trace } = this.app;
    const half = Math.min(t1 - t0, trace.duration_ns * 0.1) / 2;
    const center = this.timeAt(drag.x);
    this.app.goTo(center - half, center + half);
  }

  xOf(event) {
    return event.clientX - this.box.getBoundingClientRect().left;
  }

  timeAt(x) {
    return (x / this.width) * this.app.trace.duration_ns;
  }
}

/** What the devices do; without a device, when the busiest-looking lane of the host is busy. */
function overviewLayers(trace, { t0, binNs, nBins }) {
  const devices = trace.groups.filter((group) => group.states);
  if (devices.length) {
    const busy = meanStates(devices, t0, binNs, nBins, trace.not_recorded);
    return trace.states.slice(0, -1).filter((c) => busy.has(c)).map((c) => [c, busy.get(c)]);
  }
  const first = trace.groups.flatMap((group) => group.rows)[0];
  return first === undefined ? [] : [...occupancyByCategory(trace.rows[first].channels, t0, binNs, nBins)];
}

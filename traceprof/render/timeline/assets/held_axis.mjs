import { element } from "./dom.mjs";
import { makeAxes } from "./figure.mjs";

const HALF_LABEL_PX = 24;
const SETTLE_MS = 200; // plotly draws its axes anew when the view rests: that takes more than a frame

/** The time axis while that of the figure is scrolled away, or does not show the view yet. */
export class HeldAxis {
  constructor(app) {
    this.app = app;
    this.node = element("div", { cls: "held", hidden: "", "aria-hidden": "true" });
    this.scene = null;
    this.settled = null;
    this.timer = 0;
  }

  /** Stand for the axis of the figure until the view rests. */
  follow() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.settle(), SETTLE_MS);
    this.draw();
  }

  /** Have plotly draw the axes of the view. */
  async settle() {
    clearTimeout(this.timer);
    const { app } = this;
    const { scene } = app;
    const { data, layout } = makeAxes(scene);
    await app.plotly.react(app.figure, data, layout, app.plotlyConfig);
    if (app.scene !== scene) return;
    this.settled = scene;
    this.draw();
    app.redraws += 1;
  }

  draw() {
    const { scene, plot } = this.app;
    const isHeld = Boolean(scene) && (this.settled !== scene || plot.getBoundingClientRect().top < 0);
    this.node.hidden = !isHeld;
    if (!isHeld || this.scene === scene) return;
    this.scene = scene;
    const { ticks, t0, binNs, width } = scene;
    const labels = ticks.values.flatMap((t, i) => {
      const x = (t - t0) / binNs;
      if (x < HALF_LABEL_PX || x > width - HALF_LABEL_PX) return [];
      const node = element("span", { text: ticks.labels[i] });
      node.style.left = `${x}px`;
      return [node];
    });
    this.node.replaceChildren(...labels);
  }
}

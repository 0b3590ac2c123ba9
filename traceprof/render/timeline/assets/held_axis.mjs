import { element } from "./dom.mjs";

const HALF_LABEL_PX = 24;

/** The time axis while that of the figure is scrolled away, or does not show the view yet. */
export class HeldAxis {
  constructor(app) {
    this.app = app;
    this.node = element("div", { cls: "held", hidden: "", "aria-hidden": "true" });
    this.scene = null;
    this.settled = null;
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

import { MARGIN, plotHeight } from "./figure.mjs";
import { formatDuration } from "./format.mjs";

/** Where the parts of the plot are on the page: as high as all lanes, drawn where the band is. */

/** The part of the lanes that the window shows: from and to, in pixels from their top. */
export function lanesInWindow(plot) {
  const top = -plot.getBoundingClientRect().top - MARGIN.top;
  return [top, top + innerHeight];
}

export function sizeParts({ band, height, charts, width, figure, canvas, plot, labels, overlay }) {
  figure.style.top = `${band.top}px`;
  canvas.style.top = `${MARGIN.top + band.top}px`;
  const whole = plotHeight(height, charts);
  plot.style.height = labels.style.height = `${whole + MARGIN.top + MARGIN.bottom}px`;
  overlay.style.cssText = `left:0;top:${MARGIN.top}px;width:${width}px;height:${whole}px`;
}

/** The span that is chosen over all lanes, and how long it is. */
export function placeSelection(timeline) {
  const { selection, selectionBox, selectionText, width, t0, t1 } = timeline;
  const [from, to] = selection ?? [0, -1];
  const isVisible = selection && from < t1 && to > t0;
  selectionBox.style.display = isVisible ? "block" : "none";
  if (!isVisible) return;
  const left = Math.max(0, timeline.xOf(from));
  selectionBox.style.left = `${left}px`;
  selectionBox.style.width = `${Math.min(width, timeline.xOf(to)) - left}px`;
  selectionText.textContent = `Δ ${formatDuration(to - from)}`;
}

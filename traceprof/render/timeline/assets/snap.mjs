import { lineAt } from "./lines.mjs";
import { lowerBound } from "./bisect.mjs";

/** The edge of an event near the pointer: where people mean to begin and end a span. */

const SNAP_PX = 6;

export function snapTime(app, x, y) {
  const t = app.timeAt(x);
  const line = lineAt(app.lines, y);
  const { rows, groups } = app.trace;
  const channels = line?.type === "row" ? rows[line.row].channels : (groups[line?.group]?.states?.channels ?? []);
  let best = t;
  let nearest = SNAP_PX * app.binNs;
  for (const channel of channels) {
    for (const edges of [channel.starts, channel.ends]) {
      const place = lowerBound(edges, t, 0, channel.n);
      for (const edge of [edges[place - 1], edges[place]]) {
        if (edge !== undefined && Math.abs(edge - t) < nearest) [best, nearest] = [edge, Math.abs(edge - t)];
      }
    }
  }
  return best;
}

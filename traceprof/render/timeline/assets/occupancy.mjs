import { busyBefore, lengthOf, lengthWithin } from "./channel.mjs";
import { lowerBound } from "./bisect.mjs";

/**
 * The exact share of each bin [t0 + k·binNs, t0 + (k+1)·binNs) that a channel is busy, and how
 * many of its items start in the bin. Costs O(bins · log items), however many items there are.
 */
export function occupancy(channel, t0, binNs, nBins) {
  const ratios = new Float64Array(nBins);
  const starting = new Float64Array(nBins);
  const { starts, n } = channel;
  if (n === 0) return { ratios, starting };
  let started = lowerBound(starts, t0, 0, n);
  let before = busyBefore(channel, started, t0);
  const end = lowerBound(starts, t0 + nBins * binNs, started, n);
  const stride = Math.max(1, 2 * Math.ceil((end - started) / nBins));
  for (let k = 0; k < nBins; k++) {
    const t = t0 + (k + 1) * binNs;
    let high = started;
    while (high < end && starts[high] < t) high += stride;
    const now = lowerBound(starts, t, Math.max(started, high - stride), Math.min(high, end));
    starting[k] = now - started;
    const after = busyBefore(channel, now, t);
    ratios[k] = (after - before) / binNs;
    before = after;
    started = now;
  }
  return { ratios, starting };
}

/** The sums over several channels, per category: Map(category → ratios). */
export function occupancyByCategory(channels, t0, binNs, nBins) {
  const found = new Map();
  for (const channel of channels) {
    const { ratios } = occupancy(channel, t0, binNs, nBins);
    const sum = found.get(channel.category);
    if (!sum) found.set(channel.category, ratios);
    else for (let k = 0; k < nBins; k++) sum[k] += ratios[k];
  }
  return found;
}

/** GB/s (1e9 bytes per second) per bin of the channels that carry bytes: Map(category → rates). */
export function bandwidth(channels, t0, binNs, nBins) {
  const found = new Map();
  for (const channel of channels) {
    if (!channel.bytes) continue;
    if (!found.has(channel.category)) found.set(channel.category, new Float64Array(nBins));
    addRates(found.get(channel.category), channel, t0, binNs);
  }
  return found;
}

function addRates(rates, channel, t0, binNs) {
  const { starts, ends, bytes, n } = channel;
  const nBins = rates.length;
  const first = lowerBound(ends, t0, 0, n);
  const last = lowerBound(starts, t0 + nBins * binNs, first, n);
  for (let i = first; i < last; i++) {
    if (bytes[i] <= 0) continue;
    const end = Math.max(ends[i], starts[i] + 1);
    const perNs = bytes[i] / Math.max(1, lengthOf(channel, i));
    const from = Math.max(0, Math.floor((starts[i] - t0) / binNs));
    const to = Math.min(nBins - 1, Math.floor((end - t0) / binNs));
    for (let k = from; k <= to; k++) {
      const inside = ends[i] > starts[i] ? lengthWithin(channel, i, t0 + k * binNs, t0 + (k + 1) * binNs) : 1;
      if (inside > 0) rates[k] += (perNs * inside) / binNs;
    }
  }
}

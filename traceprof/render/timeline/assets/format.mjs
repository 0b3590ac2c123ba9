/** Numbers for people: times, bytes, rates and the labels of the time axis. */

const UNITS = [
  ["s", 1e9],
  ["ms", 1e6],
  ["µs", 1e3],
  ["ns", 1],
];

/** Three to four digits, as in the rest of traceprof, by what it is rounded to: 9.9996 is 10.00. */
function digits(value) {
  const decimals = Math.abs(value) >= 99.995 ? 1 : Math.abs(value) >= 9.9995 ? 2 : 3;
  const fixed = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
  return value.toLocaleString("en", fixed);
}

export const formatCount = (n) => n.toLocaleString("en");

export const formatNumber = (n) => n.toLocaleString("en", { maximumSignificantDigits: 6 });

export function formatDuration(ns) {
  // What would be 1,000.0 of a unit is 1.000 of the next one.
  const below = (f) => (f > 1e3 ? f / 2e4 : f > 1 ? 1 / 2 : 0);
  const [unit, factor] = UNITS.find(([, f]) => Math.abs(ns) >= f - below(f)) ?? UNITS[3];
  return factor === 1 ? `${formatCount(Math.round(ns))} ns` : `${digits(ns / factor)} ${unit}`;
}

/** Every digit: "1,234,567 ns" below a millisecond, else with a readable unit before. */
export function formatExact(ns) {
  const exact = `${formatCount(ns)} ns`;
  return Math.abs(ns) < 1e3 ? exact : `${formatDuration(ns)} (${exact})`;
}

/** Decimal units, as in the rest of traceprof: 1 GB = 1e9 bytes. */
export function formatBytes(n) {
  const names = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  let value = n;
  while (Math.abs(value) >= (place ? 999.95 : 999.5) && place < names.length - 1) {
    value /= 1000;
    place++;
  }
  return place ? `${digits(value)} ${names[place]}` : `${Math.round(n)} B`;
}

/** The number of a scale: 2.5G, 40k, 0.3. */
export function formatSi(value) {
  const [factor, letter] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([f]) => Math.abs(value) >= f) ?? [1, ""];
  return `${formatNumber(value / factor)}${letter}`;
}

export const formatRate = (bytes, ns) => `${digits(bytes / ns)} GB/s`;

export const formatPercent = (ratio) => `${(100 * ratio).toFixed(1)}%`;

/** An instant in the unit of its ticks, with as many decimals as a window of `widthNs` needs. */
export function formatInstant(ns, widthNs) {
  const [unit, factor] = tickUnit(widthNs / 10, Math.abs(ns));
  const decimals = Math.max(0, Math.min(Math.log10(factor), Math.ceil(-Math.log10(widthNs / factor)) + 3));
  return `${(ns / factor).toFixed(decimals)} ${unit}`;
}

/** The next of 1, 2 and 5 of a power of ten. */
export function roundUp(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? rough;
}

/**
 * Ticks at 1-2-5 steps for an axis of `width` pixels. `offset` is added to every label. Far
 * from zero the labels count from a printed base, so that they stay short and exact.
 */
export function makeTicks(t0, t1, width, offset = 0) {
  const step = roundUp((t1 - t0) / Math.max(2, width / 110));
  const from = t0 + offset;
  const base = from / step > 20_000 ? Math.floor(from / (step * 100)) * step * 100 : 0;
  const [unit, factor] = tickUnit(step, Math.max(Math.abs(from - base), Math.abs(t1 + offset - base)));
  const decimals = Math.max(0, -Math.floor(Math.log10(step / factor) + 1e-9));
  const values = [];
  const labels = [];
  for (let k = Math.ceil(from / step); k * step <= t1 + offset + step * 1e-6; k++) {
    values.push(k * step - offset);
    labels.push(`${base ? "+" : ""}${((k * step - base) / factor).toFixed(decimals)} ${unit}`);
  }
  return { values, labels, base };
}

/** The unit of the step, or the next larger ones where labels would have five digits or more. */
function tickUnit(step, largest) {
  const place = Math.max(0, UNITS.findIndex(([, factor]) => step >= factor));
  for (let i = place; i > 0; i--) if (largest / UNITS[i][1] < 10_000) return UNITS[i];
  return UNITS[0];
}

/** A name for plotly: drawn as it is written, nothing in it interpreted. */
export function escapeForPlotly(text) {
  return text
    .replace(/&/g, "&amp;")
    .replace(/</g, "&lt;")
    .replace(/>/g, "&gt;")
    .replace(/\$/g, "&#36;")
    .replace(/%\{/g, "%&#123;");
}

/** 1st, 2nd, 3rd, 4th …, 11th, 21st. "the longest" is what a reader calls the first. */
export function ordinal(n) {
  if (n === 1) return "the";
  const tens = n % 100;
  const suffix = tens >= 11 && tens <= 13 ? "th" : (["th", "st", "nd", "rd"][n % 10] ?? "th");
  return `${formatCount(n)}${suffix}`;
}

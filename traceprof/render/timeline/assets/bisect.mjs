/** Binary search in sorted arrays; `lo` and `hi` bound the part that is searched. */

/** The first place whose value is >= x. */
export function lowerBound(values, x, lo = 0, hi = values.length) {
  while (lo < hi) {
    const middle = (lo + hi) >>> 1;
    if (values[middle] < x) lo = middle + 1;
    else hi = middle;
  }
  return lo;
}

/** The first place whose value is > x. */
export function upperBound(values, x, lo = 0, hi = values.length) {
  while (lo < hi) {
    const middle = (lo + hi) >>> 1;
    if (values[middle] <= x) lo = middle + 1;
    else hi = middle;
  }
  return lo;
}

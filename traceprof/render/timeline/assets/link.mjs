/** `#at=START..END` (ns on the clock of the trace) names a view: for links from findings. */

const PATTERN = /^#at=(-?\d+)\.\.(-?\d+)$/;

export function parseLink(hash, trace) {
  const match = PATTERN.exec(hash);
  if (!match) return null;
  const from = Number(match[1]) - trace.offset_ns;
  const to = Number(match[2]) - trace.offset_ns;
  return to > from ? [from, to] : null;
}

export function formatLink(t0, t1, trace) {
  return `#at=${Math.round(t0 + trace.offset_ns)}..${Math.round(t1 + trace.offset_ns)}`;
}

export const readLink = (trace) => parseLink(location.hash, trace);

let timer = 0;

/** Keep the address in step with the view, so that it can be sent to somebody. */
export function writeLink({ t0, t1, trace }) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    try {
      history.replaceState(null, "", formatLink(t0, t1, trace));
    } catch {
      // A sandboxed frame has no address of its own.
    }
  }, 300);
}

import { describeEvent } from "./query.mjs";
import { openAt } from "./neighbors.mjs";
import { spanOf } from "./targets.mjs";

/** The line of the program behind a launch, from recorded Python stacks: "train.py(42): step". */

const CALLS = new Set(["host_op"]);
const FRAME = /^([^<].*)\(\d+\): [^(]*$/;

/**
 * The innermost function of the program that runs at `t`: on the thread of group `launching`, else on another
 * thread, which waits for it (backward). {event, name, isOther} or null.
 */
export function sourceLine(trace, process, launching, t) {
  const library = new RegExp(`^(?:${trace.libraries ?? ".*"})$`);
  const isOwn = (name) => {
    const file = FRAME.exec(name)?.[1];
    return file !== undefined && !library.test(file.split("/")[0].replace(/\.py$/, ""));
  };
  const threads = openAt(trace, process, t, CALLS);
  threads.sort((a, b) => Number(b.group === launching) - Number(a.group === launching));
  for (const { group, events } of threads) {
    const frames = events.map((event) => ({ event, name: describeEvent(trace, event).name, isOther: group !== launching }));
    const own = frames.filter(({ name }) => isOwn(name));
    const length = ({ event }) => spanOf(trace, event)[1] - spanOf(trace, event)[0];
    if (own.length) return own.reduce((inner, frame) => (length(frame) < length(inner) ? frame : inner));
  }
  return null;
}

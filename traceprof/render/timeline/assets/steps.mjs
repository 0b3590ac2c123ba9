import { lowerBound } from "./bisect.mjs";
import { makeChannel } from "./channel.mjs";

/** The steps as a lane of their own above all others, so that each can be seen, found and chosen. */

export function addSteps(trace) {
  const { starts, ends, labels } = trace.steps;
  if (!starts.length) return trace;
  trace.firstStepName ??= appendNames(trace, labels);
  const channel = makeChannel({
    category: trace.categories.findIndex(({ key }) => key === "range"),
    starts: Float64Array.from(starts),
    ends: Float64Array.from(ends, (end, i) => Math.min(end, starts[i + 1] ?? end)),
    names: Uint32Array.from(starts, (_, i) => trace.firstStepName + i),
  });
  const label = `${labels[0].startsWith("iteration") ? "Iterations" : "Steps"} (${starts.length})`;
  trace.rows.push({ label, kind: "step", group: trace.groups.length, channels: [channel] });
  trace.groups.push({ section: "", label, kind: "steps", process: null, rows: [trace.rows.length - 1], states: null });
  return trace;
}

function appendNames({ names, shorts, alikes }, labels) {
  const first = names.length;
  for (const label of labels) for (const list of [names, shorts, alikes]) list.push(label);
  return first;
}

/** Which steps a span has a part of: {first, last, isWhole, text}, or null where it has none. */
export function stepsOfSpan({ steps: { starts, ends, labels } }, from, to) {
  const first = starts.findIndex((start, i) => Math.min(ends[i], starts[i + 1] ?? Infinity) > from && start < to);
  if (first < 0) return null;
  const last = lowerBound(starts, to) - 1;
  const end = Math.min(ends[last], starts[last + 1] ?? Infinity);
  const text = last > first ? `${labels[first]} to ${labels[last]}` : labels[first];
  return { first, last, isWhole: from <= starts[first] && to >= end, isExactly: from === starts[first] && to === end, text };
}

const BY_NUMBER = /^(step|iteration|pattern):(\d{1,9})(?:\.\.(\d{1,9}))?$/;

/** The span of "step:3..5", as `--window` takes it; null for any other text, and where no such steps are. */
export function spanOfSteps({ steps: { starts, ends, labels } }, text) {
  const [, word, from, to = from] = BY_NUMBER.exec(text.trim()) ?? [];
  if (!word) return null;
  const [first, last] = [from, to].map((number) => labels.indexOf(`${word === "step" ? "step" : "iteration"} ${Number(number)}`));
  if (first < 0 || last < first) return null;
  return [starts[first], Math.min(ends[last], starts[last + 1] ?? Infinity)];
}

export const stepsRow = (trace) => (trace.groups.at(-1)?.kind === "steps" ? trace.groups.at(-1).rows[0] : null);

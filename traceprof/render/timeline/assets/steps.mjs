import { lowerBound } from "./bisect.mjs";
import { makeChannel } from "./channel.mjs";

/**
 * The steps as lanes of their own above all others, so that each can be seen, found and chosen:
 * when the host ran them, and, where their work tells that, when they were on the devices.
 */
export function addSteps(trace) {
  const { starts, ends, labels, device_starts: onDevices = [], device_ends: deviceEnds = [] } = trace.steps;
  if (!starts.length) return trace;
  trace.firstStepName ??= appendNames(trace, labels);
  const word = labels[0].startsWith("iteration") ? "Iterations" : "Steps";
  const label = `${word} (${starts.length})`;
  const group = trace.groups.length;
  const rows = [addRow(trace, group, onDevices.length ? `${word} on CPU (${starts.length})` : label, starts, ends)];
  if (onDevices.length) rows.push(addRow(trace, group, `${word} on GPU`, onDevices, deviceEnds));
  trace.groups.push({ section: "", label, kind: "steps", process: null, rows, states: null });
  return trace;
}

function addRow(trace, group, label, starts, ends) {
  const channel = makeChannel({
    category: trace.categories.findIndex(({ key }) => key === "range"),
    starts: Float64Array.from(starts),
    ends: Float64Array.from(ends, (end, i) => Math.min(end, starts[i + 1] ?? end)),
    names: Uint32Array.from(starts, (_, i) => trace.firstStepName + i),
  });
  return trace.rows.push({ label, kind: "step", group, channels: [channel] }) - 1;
}

/** When each step was: on the devices where that is known, as tables have it, else on the host. */
export function spansOfSteps({ steps }) {
  const isOnDevices = steps.device_starts?.length > 0;
  const [starts, ends] = isOnDevices ? [steps.device_starts, steps.device_ends] : [steps.starts, steps.ends];
  return { starts, ends, labels: steps.labels };
}

function appendNames({ names, shorts, alikes }, labels) {
  const first = names.length;
  for (const label of labels) for (const list of [names, shorts, alikes]) list.push(label);
  return first;
}

/** Which steps a span has a part of: {first, last, isWhole, text}, or null where it has none. */
export function stepsOfSpan(trace, from, to) {
  const found = stepsWithin(spansOfSteps(trace), from, to);
  if (found?.isExactly) return found;
  const onHost = stepsWithin(trace.steps, from, to);
  return onHost?.isExactly ? onHost : found;
}

function stepsWithin({ starts, ends, labels }, from, to) {
  const first = starts.findIndex((start, i) => Math.min(ends[i], starts[i + 1] ?? Infinity) > from && start < to);
  if (first < 0) return null;
  const last = lowerBound(starts, to) - 1;
  const end = Math.min(ends[last], starts[last + 1] ?? Infinity);
  const text = last > first ? `${labels[first]} to ${labels[last]}` : labels[first];
  return { first, last, isWhole: from <= starts[first] && to >= end, isExactly: from === starts[first] && to === end, text };
}

const BY_NUMBER = /^(step|iteration|pattern):(\d{1,9})(?:\.\.(\d{1,9}))?$/;

/** The span of "step:3..5", as `--window` takes it; null for any other text, and where no such steps are. */
export function spanOfSteps(trace, text) {
  const { starts, ends, labels } = spansOfSteps(trace);
  const [, word, from, to = from] = BY_NUMBER.exec(text.trim()) ?? [];
  if (!word) return null;
  const [first, last] = [from, to].map((number) => labels.indexOf(`${word === "step" ? "step" : "iteration"} ${Number(number)}`));
  if (first < 0 || last < first) return null;
  return [starts[first], Math.min(ends[last], starts[last + 1] ?? Infinity)];
}

export const stepsRows = (trace) => (trace.groups.at(-1)?.kind === "steps" ? trace.groups.at(-1).rows : []);

import { ownTime } from "./clock.mjs";
import { lowerBound, upperBound } from "./bisect.mjs";

/**
 * What can be chosen. An event: {row, channel, item}. A state of a device: {group, channel, item},
 * the channel among the states of the group; {group, gap}: one idle gap of several that a coarse page
 * has merged. A gap between the events of a lane: {row, gap}.
 */

export const isEvent = (target) => Boolean(target) && target.row !== undefined && target.item !== undefined;
export const isStep = (trace, target) => isEvent(target) && trace.rows[target.row].kind === "step";
export const isState = (target) => Boolean(target) && target.group !== undefined;

function channelOf(trace, target) {
  return isState(target)
    ? trace.groups[target.group].states.channels[target.channel]
    : trace.rows[target.row].channels[target.channel];
}

export function spanOf(trace, target) {
  if (target.gap) return target.gap;
  const { starts, ends } = channelOf(trace, target);
  return [starts[target.item], ends[target.item]];
}

/** The same by the clock of its recording: what is shown, and what lengths are made of. */
export function timesOf(trace, target) {
  const { clock } = trace.groups[groupOf(trace, target)];
  return spanOf(trace, target).map((t) => ownTime(clock, t));
}

export const lengthOfTarget = (trace, target) => timesOf(trace, target).reduce((from, to) => to - from);

export const groupOf = (trace, target) => (isState(target) ? target.group : trace.rows[target.row].group);

/** Where a target is, in a form that outlives the part of the trace that is loaded. */
export function placeOf(trace, target) {
  if (!target) return null;
  if (target.gap) return target;
  return { row: target.row, group: target.group, channel: target.channel, start: spanOf(trace, target)[0] };
}

/** The loaded item at a place, unless it is merged with others; null where it is not loaded. */
export function locate(trace, place) {
  if (!place) return null;
  if (place.gap) return place;
  const channels = place.row === undefined ? (trace.groups[place.group]?.states?.channels ?? []) : trace.rows[place.row].channels;
  for (let number = 0; number < channels.length; number++) {
    if (place.channel !== undefined && place.channel !== number) continue;
    const channel = channels[number];
    const item = lowerBound(channel.starts, place.start, 0, channel.n);
    if (channel.starts[item] !== place.start || (channel.counts && channel.counts[item] > 1)) continue;
    return place.row === undefined ? { group: place.group, channel: number, item } : { row: place.row, channel: number, item };
  }
  return null;
}

/** The state of a device at the instant `t`: a target, or null. */
export function stateAt(trace, group, t) {
  const channels = trace.groups[group].states?.channels ?? [];
  for (let number = 0; number < channels.length; number++) {
    const { starts, ends, n } = channels[number];
    const item = upperBound(starts, t, 0, n) - 1;
    if (item >= 0 && t < ends[item]) return { group, channel: number, item };
  }
  return null;
}

/** The gap of a lane around `t`, from the end of one event to the start of the next; or null. */
export function gapAt(trace, row, t) {
  const { channels, kind } = trace.rows[row];
  if (kind !== "gpu") return null;
  let from = -Infinity;
  let to = Infinity;
  for (const { starts, ends, n } of channels) {
    const next = upperBound(starts, t, 0, n);
    if (next < n) to = Math.min(to, starts[next]);
    if (next > 0) from = Math.max(from, ends[next - 1]);
  }
  return Number.isFinite(from) && Number.isFinite(to) && from <= t && to > from ? { row, gap: [from, to] } : null;
}

/** The idle state of a device: its channel, or null. */
export function idleOf(trace, group) {
  const idle = trace.states.at(-1);
  const number = trace.groups[group].states?.channels.findIndex(({ category }) => category === idle) ?? -1;
  return number < 0 ? null : { number, channel: trace.groups[group].states.channels[number] };
}

import { chartPart, fact, factsPart, notePart, tablePart } from "./contents.mjs";
import { describeEvent, findPartner } from "./query.mjs";
import { durationsOf, summarize } from "./population.mjs";
import { eventFacts } from "./facts.mjs";
import { formatBytes, formatCount, formatDuration, formatExact, formatPercent, formatRate, ordinal } from "./format.mjs";
import { partsOfSpan, recordedOfSpan, stateColumns } from "./states_of_span.mjs";
import { neighborsOf, openAt } from "./neighbors.mjs";
import { MATCHED_BY, isCollective, peersOf } from "./peers.mjs";
import { lengthOfTarget, spanOf, timesOf } from "./targets.mjs";
import { counterpartParts } from "./counterparts.mjs";
import { idleWithin } from "./gaps.mjs";
import { launchedParts } from "./launched.mjs";
import { reasonParts } from "./reasons.mjs";
import { sourceLine } from "./source_line.mjs";
import { stepParts } from "./beside.mjs";

/** All that the page knows of one event, as the content of the panel. */

const RANGES = new Set(["range"]);
const OPEN_CALLS = new Set(["range", "host_op"]);
const COLLECTIVES = new Set(["collective"]);
const MAX_PEERS = 64;

export function eventContent(app, event) {
  const { trace } = app;
  const { name, facts } = eventFacts(trace, event);
  const partner = findPartner(trace, event);
  const title = titleOf(trace, event);
  const own = [
    title === name ? null : fact("name", name),
    ...facts.map(([label, text]) => fact(label, text)),
    fact("lane", laneName(trace, event.row)),
    ...collectiveFacts(trace, event, partner),
    ...neighborFacts(trace, event),
  ];
  const launched = launchedParts(trace, event);
  const parts = [factsPart("", own), launchPart(trace, event, partner), ...launched, ...rangeParts(trace, event, partner)];
  const ofStep = trace.rows[event.row].kind === "step";
  if (ofStep) parts.push(...reasonParts(trace, event), ...stepParts(trace, event), stepPart(trace, event));
  else parts.push(...counterpartParts(trace, event));
  parts.push(...populationParts(app, event), ...peerParts(app, event));
  return { title, target: event, parts: parts.filter(Boolean) };
}

export function laneName(trace, row) {
  const { group, label } = trace.rows[row];
  const { section, label: groupLabel } = trace.groups[group];
  return [section, groupLabel, label].filter((word, i, all) => word && word !== all[i - 1]).join(" › ");
}

export const titleOf = (trace, event) => describeEvent(trace, event).short;

function neighborFacts(trace, event) {
  const [start, end] = timesOf(trace, event);
  const [before, after] = neighborsOf(trace, event);
  const words = (ns, other) => `${titleOf(trace, other)}, ${gapWords(ns)}`;
  return [
    before && fact("previous in this lane", words(start - timesOf(trace, before)[1], before), before),
    after && fact("next in this lane", words(timesOf(trace, after)[0] - end, after), after),
  ];
}

const gapWords = (ns) => (ns === 0 ? "no gap" : ns > 0 ? `${formatDuration(ns)} apart` : "overlapping");

/** The call of the host that a communication kernel belongs to, with its size. */
function collectiveFacts(trace, event, partner) {
  const own = describeEvent(trace, event);
  if (own.kind !== "gpu" || trace.categories[own.category].key !== "communication" || !partner) return [];
  const { process } = trace.groups[trace.rows[partner.row].group];
  const [call] = openAt(trace, process, spanOf(trace, partner)[0], COLLECTIVES);
  if (!call) return [];
  const found = describeEvent(trace, call.events.at(-1));
  const size = found.bytes === null ? "" : `, ${formatBytes(found.bytes)}`;
  const rate = found.bytes > 0 && own.busy > 0 && own.bytes === null;
  return [
    fact("collective", found.name + size, call.events.at(-1)),
    rate && fact("bytes / duration", `${formatRate(found.bytes, own.busy)}, including waiting`),
  ];
}

function launchPart(trace, event, partner) {
  if (!partner) return null;
  const own = describeEvent(trace, event);
  const other = describeEvent(trace, partner);
  const isDevice = own.kind === "gpu";
  const call = isDevice ? partner : event;
  const { group } = trace.rows[call.row];
  const line = sourceLine(trace, trace.groups[group].process, group, spanOf(trace, call)[0]);
  const delay = isDevice ? own.start - other.start : other.start - own.start;
  return factsPart("Launch", [
    fact(isDevice ? "launched by" : "launches", other.name, partner),
    line && fact(line.isOther ? "source line (waiting thread)" : "source line", line.name, line.event),
    fact("launch → start", formatExact(delay)),
    isDevice ? fact("call duration", formatDuration(other.end - other.start)) : null,
    fact(isDevice ? "on thread" : "on", laneName(trace, partner.row)),
  ]);
}

/** The ranges of every thread of the process around the launch, or around an event of the host. */
function rangeParts(trace, event, partner) {
  const { kind } = trace.rows[event.row];
  if (kind === "step") return [];
  const host = kind === "gpu" ? partner : event;
  if (!host) return [];
  const launching = trace.rows[host.row].group;
  const t = spanOf(trace, host)[0];
  const { process } = trace.groups[launching];
  const isSelf = (other) => other.row === event.row && other.channel === event.channel && other.item === event.item;
  return openAt(trace, process, t, OPEN_CALLS).map(({ group, events }) => {
    const isLaunching = group === launching;
    const kinds = isLaunching ? OPEN_CALLS : RANGES;
    const rows = events
      .filter((other) => kinds.has(trace.rows[other.row].kind) && !isSelf(other))
      .sort((a, b) => spanOf(trace, a)[0] - spanOf(trace, b)[0] || spanOf(trace, b)[1] - spanOf(trace, a)[1])
      .map((other) => fact(titleOf(trace, other), formatDuration(lengthOfTarget(trace, other)), other));
    const where = kind === "gpu" ? "at the launch" : "around this event";
    const caption = `Ranges ${where}, outermost first: ${trace.groups[group].label}${isLaunching ? "" : " (another thread)"}`;
    return rows.length ? factsPart(caption, rows) : null;
  });
}

/** What each device did while a step lasted. */
function stepPart(trace, event) {
  const [start, end] = spanOf(trace, event);
  const columns = stateColumns(trace);
  const header = ["GPU", ...columns.map(({ title }) => title)];
  const rows = trace.groups.flatMap((group, place) => {
    if (!group.states) return [];
    const parts = partsOfSpan(trace, place, start, end);
    const whole = recordedOfSpan(trace, place, start, end);
    const shares = columns.map(({ category }) => (whole > 0 ? formatPercent((parts.get(category) ?? 0) / whole) : "–"));
    return [{ cells: [deviceName(trace, place), ...shares], target: idleWithin(trace, place, start, end) }];
  });
  const about = ["", ...columns.map((column) => column.about)];
  const caption = "GPU activity during the step (click a row to go to the longest idle gap)";
  return rows.length ? tablePart(caption, header, rows, { about }) : null;
}

/** "rank 3 · GPU 3": the device with what tells it from those of other processes. */
export function deviceName(trace, place) {
  const { section, label } = trace.groups[place];
  return `${section.split(" · ")[0]} · ${label.split(" · ")[0]}`;
}

function populationParts(app, event) {
  const { trace } = app;
  const { names, counts } = trace.rows[event.row].channels[event.channel];
  if (app.isPartial || (counts && counts[event.item] > 1)) return [];
  const own = lengthOfTarget(trace, event);
  const { side } = trace.groups[trace.rows[event.row].group];
  const { durations, merged } = durationsOf(trace, names[event.item], trace.rows[event.row].kind, side ?? null);
  const parts = placeAmong(summarize(durations, own), own);
  if (merged) parts.push(notePart(`${formatCount(merged)} short events are merged in this page and not counted here.`));
  return parts;
}

/** What is told of all events of a name ({n, place, min, …, bins}), and of the one that is `own` long. */
export function placeAmong(found, own) {
  if (!found || found.n < 2) return found ? [factsPart("", [fact("events with this name", "only this one")])] : [];
  const rows = [
    fact("position", `${ordinal(found.place)} longest of ${formatCount(found.n)}`),
    fact("min, median, max", [found.min, found.median, found.max].map(formatDuration).join(", ")),
    fact("total", formatDuration(found.total)),
  ];
  return [factsPart("All events with this name", rows), chartPart("", { ...found, own })];
}

function peerParts(app, event) {
  const { trace } = app;
  if (app.isPartial || trace.rows[event.row].kind === "step") return [];
  const { peers, matchedBy } = peersOf(trace, event);
  const [own] = timesOf(trace, event);
  const told = peers.map(({ group, event: peer, isOwn }) => {
    const [start, end] = timesOf(trace, peer);
    return { group, isOwn, start, end, target: peer };
  });
  return [...waitParts(trace, event, told), ...peersTable(trace, told, own, matchedBy)];
}

/** How long a collective waits for the last rank that arrives, if that is another one. */
export function waitParts(trace, event, peers) {
  if (peers.length < 2 || !isCollective(trace, event)) return [];
  const last = peers.reduce((latest, peer) => (peer.start > latest.start ? peer : latest));
  if (last.isOwn) return [];
  const own = peers.find((peer) => peer.isOwn).start;
  return [factsPart("", [fact(`waits for ${peerName(trace, last.group)}`, formatDuration(last.start - own), last.target)])];
}

/** The same event on several ranks: [{group, isOwn, start, end, target}, …]. */
export function peersTable(trace, peers, own, matchedBy) {
  if (!peers.length) return [];
  const rows = peers.slice(0, MAX_PEERS).map(({ group, isOwn, start, end, target }) => ({
    cells: [peerName(trace, group) + (isOwn ? " (this)" : ""), signed(start - own), formatDuration(end - start)],
    target: isOwn ? null : target,
  }));
  const more = peers.length > MAX_PEERS ? `; first ${MAX_PEERS} of ${peers.length}` : "";
  return [tablePart(`Same event on other ranks (${MATCHED_BY[matchedBy]}${more})`, ["Where", "Start", "Duration"], rows)];
}

const peerName = (trace, group) =>
  trace.groups[group].kind === "device" ? deviceName(trace, group) : trace.groups[group].section;

export const signed = (ns) => (ns === 0 ? "here" : `${ns > 0 ? "+" : "−"}${formatDuration(Math.abs(ns))}`);

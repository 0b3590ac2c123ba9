import { groupsOfLink, isMainThread, targetOfMark } from "./marking.mjs";
import { isState, locate } from "./targets.mjs";
import { parseLink } from "./link.mjs";
import { parseNotes } from "./notes.mjs";

/** Show what an address names. */

const NOTHING = { selection: null, mark: null, place: null, find: "", kind: "", folds: null, pins: [], ranks: [], devices: [] };

/** An address that is not ours changes nothing; none at all is how the page began. */
export function followAddress(app, hash) {
  const { charts, kept } = app.lanes;
  const start = { at: app.trace.view, ...NOTHING, lanes: { ...kept, off: new Set() } };
  const link = hash === "" ? app.isFollowing && start : parseLink(hash, app.trace, charts);
  if (!link) return;
  app.isFollowing = true;
  app.notes.add(parseNotes(link.notes, app.trace));
  if (app.isEmbedded && hash !== "") app.root.scrollIntoView();
  if (link.find !== app.text || link.kind !== app.kind) app.searchFor(link.find, link.kind);
  if (!link.mark) arrangeLanes(app, link);
  app.lanes.pinned = new Set(link.pins);
  app.selection = link.selection;
  app.between = null;
  app.goTo(...link.at);
  if (link.mark) markPlace(app, link);
  else showPlace(app, locate(app.trace, link.place));
  app.address.followed();
}

/** An address that the page made says all of how lanes are arranged; one written by hand nothing. */
function arrangeLanes(app, { folds, lanes: arranged }) {
  app.lanes.setFolds(folds);
  if (!arranged) return;
  app.lanes.arrange(arranged);
  app.switchOff(arranged.off);
}

function showPlace(app, target) {
  if (target && !isState(target)) app.openFor(target);
  app.layout();
  if (app.selection) app.showSelection();
  else app.choose(target);
  if (target) app.showLine(target);
}

/** Open the ranks and lanes that a finding is about, and choose or select its place. */
function markPlace(app, link) {
  const { trace, lanes } = app;
  const named = groupsOfLink(trace, link);
  const target = targetOfMark(trace, link);
  if (target) named.add(isState(target) ? target.group : trace.rows[target.row].group);
  const processes = new Set([...named].map((place) => trace.groups[place].process));
  const belongs = (group, place) => processes.has(group.process) && (named.has(place) || isMainThread(trace, place));
  for (const place of named) lanes.reveal(place);
  if (named.size) lanes.open = new Set(trace.groups.flatMap((group, place) => (belongs(group, place) ? [place] : [])));
  if (!target) app.selection = link.mark;
  showPlace(app, target);
  const device = [...named].find((place) => trace.groups[place].kind === "device");
  if (!target && device !== undefined) app.showLine({ group: device });
}

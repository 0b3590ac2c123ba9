import { Streams, unzigzag } from "./columns.mjs";
import { makeChannel } from "./channel.mjs";
import { readNames } from "./names.mjs";

/** Reads what `encode.py` wrote: a JSON head, then columns as streams of bytes. */

/**
 * The trace: the head, with `rows` (all of them) and `groups` that refer to them by place. A slice
 * of a trace has no names of its own.
 */
export function decodeTrace(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const streams = new Streams(bytes, 4 + length, head.streams);
  const { templates, ...told } = readNames(streams, head);
  const kinds = readKinds(streams, head, templates);
  const rows = [];
  const groups = head.groups.map((group, place) => {
    const first = rows.length;
    for (const row of group.rows) {
      rows.push({ ...row, group: place, channels: row.channels.map((c) => kinds.get(row.kind).take(c)) });
    }
    const states = group.states.map((c) => kinds.get("state").take(c));
    return {
      ...group,
      rows: Array.from({ length: rows.length - first }, (_, i) => first + i),
      states: states.length ? { channels: states } : null,
    };
  });
  const samples = head.samples.map((series, place) => ({ ...series, ...readSeries(streams, place, series.n) }));
  return { ...head, ...told, rows, groups, samples };
}

/** Map(kind of row → its items), in the order in which the names were numbered. */
function readKinds(streams, head, templates) {
  const found = new Map();
  let known = 0;
  for (const kind of new Set(head.groups.flatMap(({ rows }) => [...rows.map((row) => row.kind), "state"]))) {
    const names = Uint32Array.from(streams.numbers(`${kind}.name`), (code) => {
      const name = code ? code - 1 : known;
      known = Math.max(known, name + 1);
      return name;
    });
    found.set(kind, new Items(streams, kind, names, templates && names.map((name) => templates[name])));
  }
  return found;
}

/** The items of all channels of one kind of row, handed out channel by channel. */
class Items {
  constructor(streams, kind, names, templates) {
    const column = (name, groups = null) => streams.numbers(`${kind}.${name}`, groups);
    this.columns = {
      ...{ names, gaps: column("gap", templates), durations: column("duration", templates) },
      ...{ counts: column("count"), pauses: column("pause"), bytes: column("bytes"), links: column("link") },
      ...{ longest: column("longest"), longestAt: column("longest_at") },
    };
    this.taken = Object.fromEntries(Object.keys(this.columns).map((name) => [name, 0]));
    this.link = -1;
  }

  next(name, n) {
    const begin = this.taken[name];
    return this.columns[name].subarray(begin, (this.taken[name] = begin + n));
  }

  take({ n, category, first_ns: first, ...has }) {
    const starts = this.next("gaps", n);
    const ends = this.next("durations", n);
    let end = first;
    for (let i = 0; i < n; i++) {
      starts[i] += end;
      end = ends[i] += starts[i];
    }
    const names = this.next("names", n);
    const counts = has.is_condensed ? this.next("counts", n) : null;
    const busy = counts && this.busyOf(starts, ends, counts);
    const longest = has.has_longest ? this.longestOf(starts, counts) : null;
    const bytes = has.has_bytes ? this.next("bytes", n).map((value) => value - 1) : null;
    const correlations = has.has_links ? this.linksOf(n) : null;
    return makeChannel({ category, starts, ends, names, busy, counts, longest, bytes, correlations });
  }

  busyOf(starts, ends, counts) {
    return counts.map((count, i) => ends[i] - starts[i] - (count > 1 ? unzigzag(this.next("pauses", 1)[0]) : 0));
  }

  /** When the longest of the events of each item begins and ends; of one alone, the item. */
  longestOf(starts, counts) {
    const isMerged = (i) => counts[i] > 1;
    const from = starts.map((start, i) => (isMerged(i) ? start + this.next("longestAt", 1)[0] : start));
    return { starts: from, ends: from.map((start, i) => (isMerged(i) ? start + this.next("longest", 1)[0] : start)) };
  }

  linksOf(n) {
    const links = this.next("links", n);
    for (let i = 0; i < n; i++) links[i] = links[i] ? (this.link += 1 + unzigzag(links[i] - 1)) : -1;
    return links;
  }
}

function readSeries(streams, place, n) {
  const varints = streams.varints(`samples${place}.time`);
  const times = new Float64Array(n);
  let time = 0;
  for (let i = 0; i < n; i++) times[i] = time += unzigzag(varints.next());
  const shuffled = streams.bytes(`samples${place}.value`);
  const bytes = new Uint8Array(8 * n);
  for (let i = 0; i < n; i++) for (let byte = 0; byte < 8; byte++) bytes[8 * i + byte] = shuffled[byte * n + i];
  return { times, values: new Float64Array(bytes.buffer) };
}

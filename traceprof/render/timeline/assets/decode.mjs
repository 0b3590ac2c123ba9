import { makeChannel } from "./channel.mjs";

/** Reads what `encode.py` wrote: a JSON head, then columns of varints. */

export async function gunzipBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The trace: the head, with `rows` (all of them) and `groups` that refer to them by place. */
export function decodeTrace(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const reader = new VarintReader(bytes, 4 + length);
  const rows = [];
  const groups = head.groups.map((group, place) => {
    const first = rows.length;
    for (const row of group.rows) {
      rows.push({ ...row, group: place, channels: row.channels.map((c) => readChannel(reader, c)) });
    }
    const states = group.states.map((c) => readChannel(reader, c));
    return {
      ...group,
      rows: Array.from({ length: rows.length - first }, (_, i) => first + i),
      states: states.length ? { channels: states } : null,
    };
  });
  const samples = head.samples.map((series) => ({ ...series, ...readSeries(reader, series.n) }));
  return { ...head, rows, groups, samples };
}

class VarintReader {
  constructor(bytes, offset) {
    this.bytes = bytes;
    this.offset = offset;
  }

  /** Numbers up to 2^53: multiplied, since shifts of JavaScript are 32 bits wide. */
  next() {
    let value = 0;
    let factor = 1;
    let byte;
    do {
      byte = this.bytes[this.offset++];
      value += (byte & 127) * factor;
      factor *= 128;
    } while (byte & 128);
    return value;
  }

  nextSigned() {
    const value = this.next();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  }

  floats(n) {
    const begin = this.offset;
    this.offset += 8 * n;
    return new Float64Array(this.bytes.slice(begin, this.offset).buffer);
  }

  column(n, Type = Float64Array) {
    const values = new Type(n);
    for (let i = 0; i < n; i++) values[i] = this.next();
    return values;
  }
}

function readSeries(reader, n) {
  const times = new Float64Array(n);
  let time = 0;
  for (let i = 0; i < n; i++) times[i] = time += reader.nextSigned();
  return { times, values: reader.floats(n) };
}

function readChannel(reader, head) {
  const { n, category } = head;
  const starts = reader.column(n);
  const ends = reader.column(n);
  let end = head.first_ns;
  for (let i = 0; i < n; i++) {
    starts[i] += end;
    end = ends[i] += starts[i];
  }
  const names = reader.column(n, Uint32Array);
  const busy = head.is_condensed ? reader.column(n) : null;
  const counts = head.is_condensed ? reader.column(n) : null;
  const bytes = head.has_bytes ? reader.column(n) : null;
  if (bytes) for (let i = 0; i < n; i++) bytes[i] -= 1;
  let correlations = null;
  if (head.has_correlations) {
    correlations = new Float64Array(n);
    let correlation = 0;
    for (let i = 0; i < n; i++) correlations[i] = correlation += reader.nextSigned();
  }
  return makeChannel({ category, starts, ends, names, busy, counts, bytes, correlations });
}

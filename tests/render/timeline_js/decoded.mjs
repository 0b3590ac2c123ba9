/** For the tests of encoding: what the browser reads of FILE, as JSON. `columns`, `text`, `names` or a `trace`. */
import { readFileSync } from "node:fs";
import { decodeTrace } from "../../../traceprof/render/timeline/assets/decode.mjs";
import { Streams } from "../../../traceprof/render/timeline/assets/columns.mjs";
import { bytesOfText } from "../../../traceprof/render/timeline/assets/text.mjs";

const [what, file, more] = process.argv.slice(2);
const given = new Uint8Array(readFileSync(file));

const readers = {
  columns() {
    const { lengths, groups, names } = JSON.parse(more);
    const streams = new Streams(given, 0, lengths);
    return names.map((name, i) => Array.from(streams.numbers(name, groups[i])));
  },
  text() {
    return JSON.parse(new TextDecoder().decode(given)).map(([text, length]) => Array.from(bytesOfText(text, length)));
  },
  names() {
    const { names, shorts, alikes } = decodeTrace(given);
    return { names, shorts, alikes };
  },
  trace() {
    const { names, merged, samples, rows } = decodeTrace(given);
    const lists = (columns) => columns && Object.fromEntries(Object.entries(columns).map(([key, of]) => [key, Array.from(of)]));
    const values = samples.map((series) => lists({ times: series.times, values: series.values }));
    const channels = rows.flatMap((row) => row.channels).map(({ busy, counts }) => lists(busy && { busy, counts }));
    return { names, merged: lists(merged), samples: values, channels };
  },
};
process.stdout.write(JSON.stringify(readers[what]()));

/** Small traces for the tests, in the shape that decodeTrace returns. */
import { makeChannel } from "../../../traceprof/render/timeline/assets/channel.mjs";

export const CATEGORIES = [
  { key: "compute", label: "Compute", part: "compute", light: "#0072B2", dark: "#3D9BE0" },
  { key: "communication", label: "Communication", part: "communication", light: "#D55E00", dark: "#F07A2B" },
  { key: "h2d", label: "Copy", part: "transfer", light: "#009E73", dark: "#1FBF92" },
  { key: "memset", label: "Memset", part: "device_memory", light: "#B79F00", dark: "#E2CB3A" },
  { key: "range", label: "Range", part: null, light: "#C9CDF0", dark: "#565C9E" },
  { key: "api", label: "API", part: null, light: "#9AA5B1", dark: "#6C7A8A" },
  { key: "overlap", label: "Overlap", part: null, light: "#3B2A7E", dark: "#4A3FA8" },
  { key: "exposed_communication", label: "Exposed", part: null, light: "#D55E00", dark: "#F07A2B" },
  { key: "exposed_transfer", label: "Transfer", part: null, light: "#009E73", dark: "#1FBF92" },
  { key: "device_memory", label: "Memory", part: null, light: "#CC79A7", dark: "#E39BC6" },
  { key: "idle", label: "Idle", part: null, light: "#C9CED6", dark: "#3A4452" },
  { key: "not_recorded", label: "Not recorded", part: null, light: "#EDE8DC", dark: "#241F1A" },
];

const PARTS = ["compute", "communication", "transfer", "device_memory"];
const NOT_RECORDED = 16;

/** What `state_of_parts` of render/timeline/drawn.py holds. */
function stateOf(bits) {
  if (bits === NOT_RECORDED) return "not_recorded";
  if (bits & 1) return bits & 2 ? "overlap" : "compute";
  if (bits & 2) return "exposed_communication";
  if (bits & 4) return "exposed_transfer";
  return bits & 8 ? "device_memory" : "idle";
}

export const place = (key) => CATEGORIES.findIndex((category) => category.key === key);

/** spans: [[start, end, name id], …]; more: columns such as bytes, correlations, counts, busy. */
export function channel(key, spans, more = {}) {
  return makeChannel({
    category: place(key),
    starts: Float64Array.from(spans, (span) => span[0]),
    ends: Float64Array.from(spans, (span) => span[1]),
    names: Uint32Array.from(spans, (span) => span[2] ?? 0),
    ...more,
  });
}

/** groups: [{label, kind, section, process, rows: [{label, kind, channels}]}]. */
export function trace(groups, { names = ["a", "b", "c"], duration = 100, offset = 0 } = {}) {
  const rows = [];
  const built = groups.map((group, at) => {
    const first = rows.length;
    for (const row of group.rows) rows.push({ label: "", ...row, group: at });
    return {
      section: "process 1",
      process: 1,
      label: "",
      states: null,
      ...group,
      rows: Array.from({ length: rows.length - first }, (_, i) => first + i),
    };
  });
  return {
    names,
    shorts: [...names],
    alikes: [...names],
    rows,
    groups: built,
    categories: CATEGORIES,
    states: ["compute", "overlap", "exposed_communication", "exposed_transfer", "device_memory", "idle"].map(place),
    not_recorded: place("not_recorded"),
    part_bits: CATEGORIES.map(({ key, part }) => (part ? 1 << PARTS.indexOf(part) : key === "not_recorded" ? NOT_RECORDED : 0)),
    state_of_parts: Array.from({ length: 32 }, (_, bits) => place(stateOf(bits))),
    duration_ns: duration,
    offset_ns: offset,
    n_events: rows.flatMap((row) => row.channels).reduce((sum, c) => sum + c.n, 0),
    steps: { starts: [], ends: [], labels: [] },
    focus: null,
    samples: [],
  };
}

export const device = (...rows) => ({ kind: "device", label: "GPU 0", rows });
export const stream = (...channels) => ({ kind: "gpu", label: "Stream 7", channels });

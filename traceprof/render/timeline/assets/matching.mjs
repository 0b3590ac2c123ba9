/** What a search means: text, a /regular expression/, and the other names of the same thing. */

const SHORTEST = 2;
const PATTERN = /^\/(.+)\/(i?)$/;

/**
 * Names of one thing in several libraries, without separators. NCCL runs an all-to-all as sends
 * and receives; the kernels of PyTorch's fused optimizers say "multi_tensor_apply".
 */
const FAMILIES = [
  ["alltoall", "a2a", "all2all", "sendrecv"],
  ["h2d", "htod", "host→device", "hosttodevice"],
  ["d2h", "dtoh", "device→host", "devicetohost"],
  ["d2d", "dtod", "withinthedevice", "devicetodevice"],
  ["p2p", "ptop", "device→device", "peertopeer"],
  ["matmul", "gemm", "addmm", "bmm", "aten::mm"],
  ["attention", "fmha", "flash", "sdpa"],
  ["convolution", "conv2d", "implicitgemm", "winograd", "fprop", "dgrad", "wgrad"],
  ["optimizer", "adam", "sgd", "multitensorapply"],
  ["memset", "fill"],
];

/** "all-reduce", "all_reduce" and "AllReduce" are one word. */
export const withoutSeparators = (text) => text.toLowerCase().replace(/[\s_-]+/g, "");

/** What can be searched for: its name in an address, its label, the kinds of its rows, and whose names. */
export const SOUGHT = [
  ["", "All events", null],
  ["kernels", "Kernels", ["gpu"], (name) => !isCopy(name)],
  ["copies", "Copies", ["gpu"], (name) => isCopy(name)],
  ["ranges", "Ranges", ["range"]],
  ["operators", "Operators", ["host_op"]],
  ["calls", "CUDA API calls", ["api"]],
  ["collectives", "Collectives", ["collective"]],
  ["waits", "Synchronization", ["sync"]],
  ["marks", "Marks", ["mark"]],
  ["steps", "Steps", ["step"]],
];

/** As `lanes.py` calls copies and memsets. */
const isCopy = (name) => /^(Memcpy|Memset)/.test(name);

/** {test(name), also, error}: null where there is nothing to search for yet. Of a kind no text means all. */
export function compileSearch(text, kind = "") {
  const wanted = text.trim();
  if (!wanted && kind) return { test: () => true, also: [], error: "" };
  if (wanted.length < SHORTEST) return null;
  const pattern = PATTERN.exec(wanted);
  if (pattern) return compilePattern(pattern[1], pattern[2]);
  const plain = wanted.toLowerCase();
  const bare = withoutSeparators(wanted);
  const also = (FAMILIES.find((family) => family.includes(bare)) ?? []).filter((word) => word !== bare);
  const words = [bare, ...also].filter((word) => word.length >= SHORTEST);
  const test = (name) => {
    const joined = withoutSeparators(name);
    return name.toLowerCase().includes(plain) || words.some((word) => joined.includes(word));
  };
  return { test, also, error: "" };
}

function compilePattern(source, flags) {
  try {
    const pattern = new RegExp(source, flags);
    return { test: (name) => pattern.test(name), also: [], error: "" };
  } catch {
    return { test: () => false, also: [], error: "invalid regular expression" };
  }
}

/** What matches: `names` has a byte per name, `kinds` the kinds of rows that are meant (null: all). */
export function findMatches(trace, query, kind = "") {
  const [, , kinds, isOfKind = () => true] = SOUGHT.find(([name]) => name === kind) ?? SOUGHT[0];
  const names = Uint8Array.from(trace.names, (name) => (query.test(name) && isOfKind(name) ? 1 : 0));
  return { names, kinds: kinds && new Set(kinds) };
}

/** Whether events of a row are meant. */
export const areMeant = ({ kinds }, row) => !kinds || kinds.has(row.kind);

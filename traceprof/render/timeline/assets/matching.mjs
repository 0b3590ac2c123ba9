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

/** {test(name), also, error}: null where there is nothing to search for yet. */
export function compileSearch(text) {
  const wanted = text.trim();
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
    return { test: () => false, also: [], error: "not a regular expression" };
  }
}

/** Which names match: one byte per name. */
export const matchNames = (trace, query) => Uint8Array.from(trace.names, (name) => (query.test(name) ? 1 : 0));

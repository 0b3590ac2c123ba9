/** Unpacks what `binary_text.py` wrote: gzip as text. */

const FORBIDDEN = [0, 7, 8, 10, 11, 12, 13, 14, 15, 26, 27, 60, 127];
const FIRST_PAIR = 256;

/** What the element of the page with this id holds. */
export async function unpack(id) {
  const { textContent, dataset } = document.getElementById(id);
  const packed = new Blob([bytesOfText(textContent, Number(dataset.bytes))]);
  const stream = packed.stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** 7 bits a character; those that a page cannot hold as they are make one with the next. */
export function bytesOfText(text, length) {
  const bytes = new Uint8Array(2 * text.length);
  let [n, bits, held] = [0, 0, 0];
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    for (let isPair = code >= FIRST_PAIR; ; isPair = false) {
      bits = (bits << 7) | (isPair ? FORBIDDEN[(code - FIRST_PAIR) >> 7] : code & 127);
      held += 7;
      if (held >= 8) {
        held -= 8;
        bytes[n++] = bits >> held;
        bits &= (1 << held) - 1;
      }
      if (!isPair) break;
    }
  }
  return bytes.subarray(0, length);
}

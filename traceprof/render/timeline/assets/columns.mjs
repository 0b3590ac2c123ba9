/** Reads the columns that `columns.py` wrote: numbers as symbols and what lies below them. */

const ESCAPE = 255;
const NO_BYTES = new Uint8Array(0);

/** The streams of `bytes` from `offset` on, by name; `lengths` are those of the head. */
export class Streams {
  constructor(bytes, offset, lengths) {
    this.streams = new Map();
    for (const [name, length] of Object.entries(lengths)) {
      this.streams.set(name, bytes.subarray(offset, (offset += length)));
    }
  }

  bytes(name) {
    return this.streams.get(name) ?? NO_BYTES;
  }

  varints(name) {
    return new Varints(this.bytes(name));
  }

  /** `n` integers from 0; `groups` are those that were given when they were written. */
  numbers(name, groups = null) {
    const symbols = this.symbols(name, groups);
    const values = new Float64Array(symbols.length);
    const low = Array.from({ length: 8 }, (_, place) => this.bytes(`${name}.low${place}`));
    const at = low.map((_, place) => firstOfShifts(symbols, 8 * place));
    for (let i = 0; i < symbols.length; i++) {
      const symbol = symbols[i];
      const shift = shiftOf(symbol);
      if (!shift) {
        values[i] = symbol;
        continue;
      }
      let value = ((symbol & 7) + 8) * 2 ** shift;
      for (let place = 0, factor = 1; 8 * place < shift; place++, factor *= 256) {
        value += low[place][at[place][shift]++] * factor;
      }
      values[i] = value;
    }
    return values;
  }

  symbols(name, groups) {
    const symbols = Uint16Array.from(this.bytes(`${name}.symbol`));
    const escapes = this.varints(`${name}.escape`);
    for (let i = 0; i < symbols.length; i++) if (symbols[i] === ESCAPE) symbols[i] += escapes.next();
    if (this.streams.has(`${name}.expected`)) addExpected(symbols, groups, this.varints(`${name}.expected`));
    return symbols;
  }
}

/** How many bits lie below a symbol. */
const shiftOf = (symbol) => (symbol < 16 ? 0 : (symbol >> 3) - 1);

/** Where the bytes of each shift begin, among those of the numbers with more than `least` bits. */
function firstOfShifts(symbols, least) {
  const counts = new Float64Array(65);
  for (let i = 0; i < symbols.length; i++) {
    const shift = shiftOf(symbols[i]);
    if (shift > least) counts[shift + 1]++;
  }
  for (let shift = 1; shift < counts.length; shift++) counts[shift] += counts[shift - 1];
  return counts;
}

function addExpected(symbols, groups, given) {
  const expected = [];
  for (let i = 0; i < symbols.length; i++) {
    expected[groups[i]] ??= given.next();
    symbols[i] = expected[groups[i]] + unzigzag(symbols[i]);
  }
}

export const unzigzag = (value) => (value % 2 ? -(value + 1) / 2 : value / 2);

class Varints {
  constructor(bytes) {
    this.bytes = bytes;
    this.offset = 0;
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
}

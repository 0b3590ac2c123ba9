import { element } from "./dom.mjs";

/** What one sees as files: tables as CSV. Pictures are plotly's. */

const FORMULA = /^['\p{C}\p{Z}]*[=+\-@\u2212]/u;
const NUMBER = /^[+-]?[\d.,\s]+( ?[a-zµ%/]+)?$/i;
const ESCAPED = /(?![\n\t])[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\p{Bidi_C}\ufeff]|\\(?=u[0-9a-f]{4})/gu;

/** A cell as `csv_cell` in Python makes it: no formula, and without what ends a row or a text. */
export function csvCell(value) {
  const text = String(value);
  const safe = FORMULA.test(text.normalize("NFKC")) && !NUMBER.test(text) ? `'${text}` : text;
  const cell = safe.replace(ESCAPED, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return /[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell;
}

/** The facts and tables of parts, one below the other, with their captions. */
export function csvOf(parts) {
  const lines = [];
  for (const { type, caption, rows, header } of parts) {
    if (type !== "facts" && type !== "table") continue;
    if (lines.length) lines.push([]);
    if (caption) lines.push([caption]);
    if (type === "table") lines.push(header);
    lines.push(...rows.map((row) => row.cells ?? [row.label, row.text]));
  }
  return lines.map((cells) => `${cells.map(csvCell).join(",")}\r\n`).join("");
}

export function saveText(text, name, type) {
  const link = element("a", { download: name });
  const address = URL.createObjectURL(new Blob([text], { type }));
  link.href = address;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

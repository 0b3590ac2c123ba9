import { element } from "./dom.mjs";

/** What one sees as files: tables as CSV. Pictures are plotly's. */

/** Text that a sheet would take for a formula gets a quotation mark in front. */
export function csvCell(value) {
  const text = String(value);
  const plain = /^[=+\-@\t\r＝＋－＠]/.test(text) && !/^[+-]?[\d.,\s]+( ?[a-zµ%/]+)?$/i.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
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

/**
 * What the panel can say, as data: {title, target, parts}. The page and the copied text are made
 * of the same parts. A `target` leads to its place when it is clicked.
 */

export const fact = (label, text, target = null) => ({ label, text: String(text), target });

export const factsPart = (caption, rows) => ({ type: "facts", caption, rows: rows.filter(Boolean) });

/** rows: [{cells, target}]; the first column is text, the others numbers. */
export const tablePart = (caption, header, rows, more = {}) => ({ type: "table", caption, header, rows, ...more });

export const chartPart = (caption, chart) => ({ type: "chart", caption, chart });

export const notePart = (text) => ({ type: "note", text });

/** The content as text, for a chat or a ticket: tab separated, so that a sheet takes it too. */
export function contentText({ title, parts }) {
  return [title, ...parts.flatMap(partLines)].join("\n");
}

function partLines(part) {
  if (part.type === "note") return [part.text];
  if (part.type === "chart" || part.type === "choice") return [];
  const caption = part.caption ? ["", part.caption] : [];
  if (part.type === "notes") return [...caption, ...part.rows.map(({ text, about }) => `${about}\t${text}`)];
  if (part.type === "facts") return [...caption, ...part.rows.map(({ label, text }) => `${label}\t${text}`)];
  return [...caption, part.header.join("\t"), ...part.rows.map(({ cells }) => cells.join("\t"))];
}

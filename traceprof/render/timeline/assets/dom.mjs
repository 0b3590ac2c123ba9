/** Elements of the page. Text only ever goes in as text: names in a trace are untrusted. */

export function element(tag, { cls, text, title, ...attributes } = {}, ...children) {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  if (text !== undefined && text !== null) node.textContent = text;
  if (title) node.title = title;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function button(label, title, onClick) {
  const node = element("button", { text: label, title, type: "button" });
  if (title) node.setAttribute("aria-label", title);
  node.addEventListener("click", onClick);
  return node;
}

/** A table with a header row; cells are text. */
export function table(caption, header, rows) {
  const node = element("table", {}, element("caption", { text: caption }));
  const head = node.createTHead().insertRow();
  for (const text of header) head.append(element("th", { text, scope: "col" }));
  const body = node.createTBody();
  for (const cells of rows) {
    const row = body.insertRow();
    for (const cell of cells) row.insertCell().append(element("span", { cls: "cell", text: cell, title: cell }));
  }
  return node;
}

/** Of the buttons of a group one takes the focus; the arrows go to the others. */
export function oneTabStop(group) {
  const all = [...group.querySelectorAll("button")];
  all.forEach((node, i) => (node.tabIndex = i ? -1 : 0));
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = step && all[(all.indexOf(event.target) + step + all.length) % all.length];
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    for (const node of all) node.tabIndex = node === next ? 0 : -1;
    next.focus();
  });
}

"use strict";
/* Only what can be scrolled is a stop on the way with Tab: a report has dozens of tables. */
(() => {
  const areas = [...document.querySelectorAll(".scroll[tabindex]")];
  function mark() {
    const needed = areas.map((area) => area.scrollWidth > area.clientWidth);
    for (const [i, area] of areas.entries()) {
      if (needed[i]) area.setAttribute("tabindex", "0");
      else area.removeAttribute("tabindex");
    }
  }
  window.addEventListener("resize", mark);
  mark();
})();
/* A link to a folded section unfolds it. */
(() => {
  function unfold() {
    const section = /^#[\w-]+$/.test(location.hash) && document.querySelector(`section${location.hash}`);
    const folded = section && section.querySelector(":scope > details.section:not([open])");
    if (!folded) return;
    folded.open = true;
    section.scrollIntoView();
  }
  window.addEventListener("hashchange", unfold);
  unfold();
})();
/* What is drawn of a place leads to it in the timeline. */
document.addEventListener("click", ({ target }) => {
  const to = target instanceof Element && target.closest("[data-to]")?.getAttribute("data-to");
  if (to) location.hash = to;
});
/* A click on the head of a column sorts the rows that are shown by it: down, up. */
(() => {
  const UNITS = { ns: 1, µs: 1e3, ms: 1e6, s: 1e9, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
  const NUMBER = /^([+-]?[\d ,]*\d(?:\.\d+)?)(?: ?([^\s\d]+))?$/;
  function valueOf(cell) {
    const text = cell.textContent.trim();
    const found = NUMBER.exec(text);
    if (!found) return text === "–" || text === "" ? null : text;
    return Number(found[1].replaceAll(/[ ,]/g, "")) * (UNITS[(found[2] ?? "").replace("/s", "")] ?? 1);
  }

  /* What is not known stands last, numbers before words. */
  function compare(one, other) {
    if (one === null || other === null) return 0;
    if (typeof one === typeof other) return typeof one === "number" ? one - other : one.localeCompare(other, "en", { numeric: true });
    return typeof one === "number" ? -1 : 1;
  }

  function sort(head, column) {
    const isDown = head.getAttribute("aria-sort") !== "descending";
    for (const one of head.parentElement.children) one.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows].map((row) => [valueOf(row.cells[column]), row]);
    const [known, unknown] = [rows.filter(([value]) => value !== null), rows.filter(([value]) => value === null)];
    known.sort(([one], [other]) => (isDown ? compare(other, one) : compare(one, other)));
    body.append(...[...known, ...unknown].map(([, row]) => row));
  }

  for (const head of document.querySelectorAll(".scroll thead th")) {
    if (head.closest("table").tBodies[0].rows.length < 2) continue;
    const button = document.createElement("button");
    button.className = "sort-rows";
    // With hundreds of columns, keys would have a long way through the page.
    button.tabIndex = -1;
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(head, head.cellIndex));
  }
})();

/* On paper a wide table is several below one another, each with the first columns. */
(() => {
  const MOST = 11;
  const REPEATED = 2;
  function split(table) {
    const rows = [...table.rows];
    const n = rows[0].cells.length;
    const nParts = Math.ceil((n - REPEATED) / (MOST - REPEATED));
    const each = Math.ceil((n - REPEATED) / nParts);
    for (let part = nParts - 1; part >= 0; part--) {
      const first = REPEATED + part * each;
      const copy = table.cloneNode(true);
      copy.className = "part";
      for (const row of copy.rows) {
        [...row.cells].forEach((cell, i) => {
          if (i >= REPEATED && (i < first || i >= first + each)) cell.remove();
        });
      }
      copy.caption.append(` · columns, part ${part + 1} of ${nParts}`);
      table.after(copy);
    }
    table.classList.add("unsplit");
  }

  let isSplit = false;
  function splitAll() {
    if (isSplit) return;
    isSplit = true;
    for (const old of document.querySelectorAll("table.part")) old.remove();
    for (const table of document.querySelectorAll(".scroll table")) {
      if (table.rows[0].cells.length > MOST) split(table);
    }
  }
  // Before pages are counted, and with rows in the order in which the reader has sorted them.
  window.addEventListener("beforeprint", splitAll);
  matchMedia("print").addEventListener("change", ({ matches }) => {
    if (matches) splitAll();
    else isSplit = false;
  });
})();

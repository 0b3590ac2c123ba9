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
/* What is drawn of a place leads to it in the timeline. */
document.addEventListener("click", ({ target }) => {
  const to = target instanceof Element && target.closest("[data-to]")?.getAttribute("data-to");
  if (to) location.hash = to;
});

"use strict";
/* Draws the figures of the page: each when it comes into view, anew in another theme, and all of
   them, light and as wide as it is, on paper. */
(() => {
  const VARIABLE = /^var\((--[\w-]+)\)$/;
  const PAPER_PX = 700;
  const paper = matchMedia("print");
  const figures = [...document.querySelectorAll("figure.plotly-chart")];
  const told = new Map(figures.map((figure) => [figure, JSON.parse(figure.firstElementChild.textContent)]));
  const drawn = new Set();
  let isOnPaper = false;

  /* Colors of the page are variables, which plotly does not know. */
  function colored(value, style) {
    if (typeof value === "string") {
      const name = VARIABLE.exec(value)?.[1];
      return name ? style.getPropertyValue(name).trim() : value;
    }
    if (Array.isArray(value)) return value.map((one) => colored(one, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, colored(one, style)]));
  }

  function draw(figure) {
    const { data, layout, config } = colored(told.get(figure), getComputedStyle(document.documentElement));
    if (isOnPaper) {
      const width = Math.min(PAPER_PX, figure.clientWidth);
      Object.assign(layout, { width, autosize: false, updatemenus: [] });
    }
    // On a phone a finger scrolls the page.
    if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false;
    const isNew = !drawn.has(figure);
    drawn.add(figure);
    window.Plotly.react(figure, data, layout, config);
    if (isNew) figure.on("plotly_click", ({ points: [point] }) => follow(point, figure.layout.meta));
    figure.dataset.drawn = "true";
  }

  /* A point leads to its place in the timeline. */
  function follow({ data, pointNumber }, shared) {
    const links = data.meta?.links;
    const address = (typeof links === "string" ? shared[links] : links)?.[pointNumber];
    if (address) location.hash = address;
  }

  function forPaper() {
    if (isOnPaper) return;
    isOnPaper = true;
    const { dataset } = document.documentElement;
    const { theme } = dataset;
    dataset.theme = "light";
    figures.forEach(draw);
    dataset.theme = theme;
  }

  function forScreen() {
    if (!isOnPaper) return;
    isOnPaper = false;
    [...drawn].forEach(draw);
  }

  function start() {
    const watch = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        watch.unobserve(target);
        if (!drawn.has(target)) draw(target);
      }
    }, { rootMargin: "400px" });
    for (const figure of figures) watch.observe(figure);
    document.addEventListener("traceprof-theme", () => drawn.forEach(draw));
    // What grows once pages are counted is cut off: all is drawn before.
    window.addEventListener("beforeprint", forPaper);
    window.addEventListener("afterprint", forScreen);
    paper.addEventListener("change", () => (paper.matches ? forPaper() : forScreen()));
  }

  if (window.Plotly) start();
  else document.addEventListener("traceprof-plotly", start, { once: true });
})();

"use strict";
/* Under the pointer, or where the arrow keys lead: the time, and what is allocated from then on. */
(() => {
  const BYTES = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
  const TIMES = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -50, PageDown: 50 };
  const words = (value, units) => {
    const [factor, unit] = units.find(([f]) => Math.abs(value) >= f) ?? units.at(-1);
    return `${Number((value / factor).toPrecision(4))}\u00a0${unit}`;
  };

  for (const data of document.querySelectorAll("script.memory-levels")) {
    const { left, right, at, isTime, levels } = JSON.parse(data.textContent);
    const chart = data.previousElementSibling;
    const rule = document.createElementNS(chart.namespaceURI, "line");
    const sentence = document.createElement("p");
    sentence.className = "note";
    sentence.setAttribute("role", "status");
    sentence.textContent = "Point at the chart, or use the arrow keys, to see what is allocated.";
    chart.tabIndex = 0;
    chart.append(rule);
    chart.after(sentence);
    let place = 0;

    function show(index) {
      place = Math.max(0, Math.min(at.length - 1, index));
      const x = left + ((at[place] - at[0]) / (at.at(-1) - at[0])) * (right - left);
      const ends = { x1: x, x2: x, y1: 0, y2: chart.viewBox.baseVal.height, stroke: "currentColor" };
      for (const [name, value] of Object.entries(ends)) rule.setAttribute(name, value);
      const held = Object.entries(levels).map(([name, bytes]) => [name, bytes[place]]).filter(([, bytes]) => bytes > 0);
      const sum = held.reduce((all, [, bytes]) => all + bytes, 0);
      const parts = held.sort((a, b) => b[1] - a[1]).map(([name, bytes]) => `${name} ${words(bytes, BYTES)}`);
      const when = isTime ? words(at[place], TIMES) : `event ${at[place]}`;
      sentence.textContent = `${when}: ${words(sum, BYTES)} allocated${parts.length ? `: ${parts.join(", ")}` : ""}`;
    }

    chart.addEventListener("pointermove", ({ clientX, clientY }) => {
      const { x } = new DOMPoint(clientX, clientY).matrixTransform(chart.getScreenCTM().inverse());
      const value = at[0] + ((x - left) / (right - left)) * (at.at(-1) - at[0]);
      show(at.findLastIndex((from) => from <= value));
    });
    chart.addEventListener("keydown", (event) => {
      if (!STEPS[event.key]) return;
      event.preventDefault();
      show(place + STEPS[event.key]);
    });
  }
})();

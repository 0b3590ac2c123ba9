"use strict";
/* Unpack plotly.js, which the page holds, and draw the figure that it holds. */
(async () => {
  const textOf = (id) => document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(textOf("plotly")), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
  const { data, layout } = JSON.parse(textOf("told"));
  const place = document.getElementById("figure");
  await window.Plotly.newPlot(place, data, layout, JSON.parse(textOf("config")));
  place.dataset.ready = "true";
})();

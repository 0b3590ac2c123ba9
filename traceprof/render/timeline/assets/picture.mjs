import { Backdrop } from "./backdrop.mjs";
import { figureHeights, makeFigure } from "./figure.mjs";
import { escapeForPlotly } from "./format.mjs";

/** The view as one plotly figure that stands alone: with the backdrop and the names of the lanes. */

const LABEL_WIDTH = 230;
const TITLE_HEIGHT = 30;
const MAX_LABEL = 34;

export function makePicture(app) {
  const { data, layout } = makeFigure(app.scene);
  const { lines, theme } = app.scene;
  const card = getComputedStyle(document.documentElement).getPropertyValue("--card").trim();
  return {
    data,
    layout: {
      ...layout,
      width: layout.width + LABEL_WIDTH,
      height: layout.height + TITLE_HEIGHT,
      margin: { ...layout.margin, l: LABEL_WIDTH, t: layout.margin.t + TITLE_HEIGHT },
      paper_bgcolor: card,
      plot_bgcolor: card,
      title: { text: escapeForPlotly(document.title), x: 0.01, y: 0.99, yanchor: "top", font: { size: 14 } },
      yaxis: {
        ...layout.yaxis,
        visible: true,
        showgrid: false,
        zeroline: false,
        tickmode: "array",
        tickvals: lines.map((line) => line.y + line.height / 2),
        ticktext: lines.map(lineText),
        tickfont: { size: 10.5, color: theme.muted },
      },
      images: [backdropImage(app.scene)],
    },
  };
}

function lineText({ type, label }) {
  const short = label.length > MAX_LABEL ? `${label.slice(0, MAX_LABEL - 1)}…` : label;
  const text = escapeForPlotly(short);
  return type === "section" ? `<b>${text}</b>` : text;
}

function backdropImage(scene) {
  const canvas = document.createElement("canvas");
  new Backdrop(canvas).draw(scene, figureHeights(scene).plot, { isPicture: true });
  return { source: canvas.toDataURL("image/png"), ...WHOLE };
}

const WHOLE = {
  xref: "paper",
  yref: "paper",
  x: 0,
  y: 1,
  sizex: 1,
  sizey: 1,
  sizing: "stretch",
  xanchor: "left",
  yanchor: "top",
  layer: "below",
};

/**
 * The part of the lanes that is drawn, in pixels from their top. A page of ordinary height is drawn
 * whole; of a tall one what the window shows and some more, so that lanes out of sight cost nothing.
 */

const WHOLE_PX = 3000;
const TALLEST_PX = 16_000; // of a canvas on every device
const SPARE_PX = 600;
const MOVE_PX = 300; // it moves in steps, so that not every turn of the wheel draws anew

/** `height` of all lanes; the window shows [top, bottom) of them, paper as much as there can be. */
export function drawnBand(height, [top, bottom], isPrinting = false) {
  if (height <= (isPrinting ? TALLEST_PX : WHOLE_PX)) return { top: 0, bottom: height };
  const from = Math.floor((top - SPARE_PX) / MOVE_PX) * MOVE_PX;
  const to = Math.ceil((bottom + SPARE_PX) / MOVE_PX) * MOVE_PX;
  const end = Math.min(height, Math.max(to, 2 * SPARE_PX));
  return { top: Math.max(0, Math.min(from, end - 2 * SPARE_PX)), bottom: end };
}

/** Whether all is drawn that the window shows. */
export function isDrawn({ top, bottom }, height, [from, to]) {
  return top <= Math.max(0, Math.min(from, height)) && bottom >= Math.min(height, Math.max(0, to));
}

/** The lines with a part in the band, placed from its top on. */
export function linesWithin(lines, { top, bottom }) {
  return lines.filter(({ y, height }) => y < bottom && y + height > top).map((line) => ({ ...line, y: line.y - top }));
}

/** Colors: shades that tell neighbors apart, ink that stays readable. */

const channelsOf = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

/** Lighter (amount > 0) or darker (amount < 0), -1 … 1. */
export function shade(hex, amount) {
  const mixed = channelsOf(hex).map((v) => Math.round(amount > 0 ? v + (255 - v) * amount : v * (1 + amount)));
  return `#${mixed.map((v) => v.toString(16).padStart(2, "0")).join("")}`;
}

export function withAlpha(hex, alpha) {
  return `rgba(${channelsOf(hex).join(",")},${alpha})`;
}

/** A pixel of canvas image data on a little-endian machine (alpha is or-ed in by the caller). */
export function toPixel(hex) {
  const [r, g, b] = channelsOf(hex);
  return (b << 16) | (g << 8) | r;
}

/** Black or white, whichever is easier to read on `hex`. */
export function inkOn(hex) {
  const [r, g, b] = channelsOf(hex).map((v) => {
    const x = v / 255;
    return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.26 ? "#10151c" : "#ffffff";
}

const SHADES = [0, 0.18, -0.16];
const PALE_SHADES = [0, 0.22, -0.07];
const N_SHADES = SHADES.length;

/** Which of the shades a name gets, so that neighbors differ without borders. */
export function shadeOf(nameId) {
  const mixed = Math.imul(nameId ^ 0x9e3779b9, 0x85ebca6b);
  return ((mixed ^ (mixed >>> 13)) >>> 0) % N_SHADES;
}

export const shaded = (hex, which, isPale) => {
  const amount = (isPale ? PALE_SHADES : SHADES)[which];
  return amount === 0 ? hex : shade(hex, amount);
};

/** Light and dark: the system's wish, unless the reader chose otherwise. */

const KEY = "traceprof-theme";
const FONT = 'system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

const THEMES = {
  light: {
    muted: "#5d6b7e",
    line: "#e3e7ec",
    ink: "#000000",
    band: "rgba(20,40,80,.045)",
    step: "rgba(10,20,40,.32)",
    steps: "#d9dee6",
    hit: "#e0a800",
    accent: "#0b63ce",
    focus: "rgba(11,99,206,.05)",
  },
  dark: {
    muted: "#93a1b3",
    line: "#2a3442",
    ink: "#ffffff",
    band: "rgba(255,255,255,.04)",
    step: "rgba(255,255,255,.30)",
    steps: "#39424f",
    hit: "#ffd75e",
    accent: "#5aa9ff",
    focus: "rgba(90,169,255,.07)",
  },
};

export const themeOf = (name) => ({ ...THEMES[name], font: FONT });

export function initialTheme() {
  const asked = new URLSearchParams(location.search).get("theme");
  if (asked in THEMES) return asked;
  return stored() ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

/** Storage may be forbidden (a sandboxed frame): then the choice lasts as long as the page. */
function stored() {
  try {
    const name = localStorage.getItem(KEY);
    return name in THEMES ? name : null;
  } catch {
    return null;
  }
}

export function applyTheme(name) {
  document.documentElement.dataset.theme = name;
}

export function storeTheme(name) {
  try {
    localStorage.setItem(KEY, name);
  } catch {
    // Not kept: see stored().
  }
}

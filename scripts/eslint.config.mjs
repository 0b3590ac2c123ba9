// How the JavaScript of the timeline is linted (scripts/lint). It runs in browsers, without a build.
const browser = [
  "Blob", "clearTimeout", "CSS", "CustomEvent", "DecompressionStream", "document", "DOMParser", "fetch",
  "getComputedStyle", "history", "ImageData", "innerHeight", "innerWidth", "localStorage",
  "location", "matchMedia", "navigator", "performance", "Plotly", "requestAnimationFrame", "ResizeObserver",
  "Response", "setTimeout", "TextDecoder", "URL", "URLSearchParams", "window",
];

export default [
  {
    files: ["**/*.mjs"],
    languageOptions: {
      ecmaVersion: 2022,
      sourceType: "module",
      globals: Object.fromEntries(browser.map((name) => [name, "readonly"])),
    },
    rules: {
      complexity: ["error", 14],
      eqeqeq: "error",
      "max-lines": ["error", 300],
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-shadow": "error",
      "no-undef": "error",
      "no-unused-vars": "error",
      "no-var": "error",
      "prefer-const": "error",
    },
  },
];

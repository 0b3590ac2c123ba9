import { applyTheme, initialTheme } from "./theme.mjs";

/** In the head of a page: what is shown while the rest is read has its colors already. */

applyTheme(initialTheme());

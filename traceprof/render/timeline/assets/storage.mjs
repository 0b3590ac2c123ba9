/** What the reader set up, kept by the browser where it may (a sandboxed frame may not). */

export function recall(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function remember(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // Then it lasts as long as the page.
  }
}

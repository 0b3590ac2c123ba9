/** Refresh the state of the run once a second, while the page is visible. */
const REFRESH_MS = 1000;

async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch("/state");
      if (answer.ok) {
        // The server escapes every text of the run; a parsed document runs no script either.
        const state = new DOMParser().parseFromString(await answer.text(), "text/html");
        document.getElementById("run").replaceChildren(...state.body.childNodes);
      }
      document.body.classList.toggle("is-lost", !answer.ok);
    } catch {
      document.body.classList.add("is-lost");
    }
  }
  setTimeout(refresh, REFRESH_MS);
}

setTimeout(refresh, REFRESH_MS);

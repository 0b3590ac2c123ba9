/** Refresh the state of the run once a second, while the page is visible. */
const REFRESH_MS = 1000;

async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch("/state");
      // The server escapes every text of the run.
      if (answer.ok) document.getElementById("run").innerHTML = await answer.text();
      document.body.classList.toggle("is-lost", !answer.ok);
    } catch {
      document.body.classList.add("is-lost");
    }
  }
  setTimeout(refresh, REFRESH_MS);
}

setTimeout(refresh, REFRESH_MS);

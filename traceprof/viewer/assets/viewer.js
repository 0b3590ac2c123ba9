"use strict";
/* The page around the timelines: their selection drives the tables, their view the address. */
(() => {
  const DEFAULT = ["breakdown", "findings", "phases", "kernels", "copies"];
  const SLACK_PX = 8;
  const frames = () => [...document.querySelectorAll("iframe.timeline")];

  function theme() {
    let chosen = null;
    try {
      chosen = localStorage.getItem("traceprof-theme");
    } catch {
      // Storage may be forbidden: then the system's wish counts.
    }
    if (chosen !== "light" && chosen !== "dark") {
      chosen = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    }
    document.documentElement.dataset.theme = chosen;
  }

  function keepAddress(search, hash) {
    history.replaceState(history.state, "", location.pathname + search + hash);
  }

  /* An address is that of the timeline of which it was made (`of`); of the others it has the notes. */
  const SHARED = ["at", "find"];
  const notesOf = (pane) => (pane ? `notes${pane + 1}` : "notes");
  const wordsOf = (hash) => hash.replace(/^#/, "").split("&").filter(Boolean).map((word) => [word.split("=", 1)[0], word]);

  function addressOf(pane, link) {
    const own = wordsOf(link).filter(([name]) => name !== "notes").map(([, word]) => word);
    const notes = frames().flatMap(({ contentWindow: { traceprof } }, place) => {
      const words = traceprof?.notes.words;
      return words ? [`${notesOf(place)}=${words}`] : [];
    });
    return `#${[...own, ...(pane ? [`of=${pane + 1}`] : []), ...notes].join("&")}`;
  }

  /* What of the address is meant for one timeline. */
  function partOf(hash, pane) {
    const words = wordsOf(hash);
    const of = Number(words.find(([name]) => name === "of")?.[1].slice(3) ?? 1) - 1;
    const isMeant = ([name]) => (of === pane ? !/^(notes\d*|of)$/.test(name) : SHARED.includes(name));
    const notes = words.filter(([name]) => name === notesOf(pane)).map(([name, word]) => `notes${word.slice(name.length)}`);
    return `#${[...words.filter(isMeant).map(([, word]) => word), ...notes].join("&")}`;
  }

  window.traceprofPartOf = partOf;

  /* Within its document: a bare hash would be taken as one of this page. */
  function lead({ contentWindow: { location: inner } }, hash) {
    inner.replace(inner.pathname + hash);
  }

  function follow(pane, [t0, t1]) {
    const all = frames();
    if (document.activeElement !== all[pane] && all.length > 1) return;
    const own = all[pane].contentWindow.traceprof;
    if (!own) return;
    keepAddress(location.search, addressOf(pane, own.link));
    const way = document.querySelector("#together input:checked")?.value;
    if (!way || way === "no") return;
    for (const frame of all) {
      const other = frame.contentWindow.traceprof;
      if (!other || other === own) continue;
      const by = way === "steps" ? stepsApart(own.trace.steps, other.trace.steps, (t0 + t1) / 2) : 0;
      if (other.t0 !== t0 + by || other.t1 !== t1 + by) other.goTo(t0 + by, t1 + by);
    }
  }

  /* How much later the other run begins the step in the middle of the view: of one name, else of one place. */
  function stepsApart(own, other, t) {
    const place = own.starts.findLastIndex((start) => start <= t);
    if (place < 0) return own.starts.length && other.starts.length ? other.starts[0] - own.starts[0] : 0;
    const named = other.labels.indexOf(own.labels[place]);
    const theirs = other.starts[named < 0 && !other.labels.some((label) => own.labels.includes(label)) ? place : named];
    return theirs === undefined ? 0 : theirs - own.starts[place];
  }

  /* At most what the window shows: the details stay in view while the lanes are scrolled. */
  function heightOf(wanted) {
    return Math.max(200, Math.min(Math.ceil(wanted), Math.max(480, innerHeight - 24)));
  }

  /* The panel of a timeline fits its room into the frame: were each pixel less taken away, the frame
     would be too short, grow, and so on for ever. */
  function resize(pane, height) {
    const frame = frames()[pane];
    const [wanted, now] = [heightOf(height), frame.clientHeight];
    if (wanted > now || wanted < now - SLACK_PX) frame.style.height = `${wanted}px`;
  }

  const listeners = {
    view: follow,
    height: resize,
    selection: (_, [from, to]) => window.dash_clientside.set_props("window", { value: `${from}ns..${to}ns` }),
  };

  window.addEventListener("message", ({ origin, source, data }) => {
    if (origin !== location.origin || !frames().some((frame) => frame.contentWindow === source)) return;
    if (Object.hasOwn(listeners, data?.traceprof)) listeners[data.traceprof](data.pane, data.value);
  });
  /* Not of the address now: a view that was told meanwhile may have replaced it. */
  window.addEventListener("hashchange", ({ newURL }) => {
    const { hash } = new URL(newURL);
    frames().forEach((frame, pane) => lead(frame, partOf(hash, pane)));
  });
  document.addEventListener("click", (event) => {
    const pair = event.target.closest?.("a[data-beside]");
    const chosen = document.getElementById("window")?.value;
    if (pair) pair.href = pair.pathname + (chosen ? `?${new URLSearchParams({ window: chosen })}` : "");
    const link = event.target.closest?.("a[data-pane]");
    if (!link) return;
    event.preventDefault();
    const frame = frames()[Number(link.dataset.pane)];
    lead(frame, link.getAttribute("href"));
    keepAddress(location.search, addressOf(Number(link.dataset.pane), link.getAttribute("href")));
    frame.scrollIntoView({ block: "start" });
  });
  /* Keys of the page itself, where nothing has the focus, are those of the first timeline. */
  document.addEventListener("keydown", (event) => {
    const inner = frames()[0]?.contentDocument;
    if (event.target !== document.body || !inner?.body || event.ctrlKey || event.metaKey || event.altKey) return;
    const { key, shiftKey } = event;
    const isUnused = inner.body.dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey, bubbles: true, cancelable: true }));
    if (isUnused) return;
    event.preventDefault();
    if (inner.activeElement !== inner.body) frames()[0].focus();
  });
  window.addEventListener("storage", theme);
  theme();

  /* Dash's list of choices has a stop of the Tab key that screen readers are not told of. */
  new MutationObserver((_, observer) => {
    const unseen = document.querySelector(".dash-dropdown-focus-target");
    if (!unseen) return;
    unseen.tabIndex = -1;
    observer.disconnect();
  }).observe(document.documentElement, { childList: true, subtree: true });

  window.dash_clientside = Object.assign(window.dash_clientside ?? {}, {
    traceprof: {
      /* What the address names at first; later the button asks for the default. */
      recall(clicks) {
        const asked = new URLSearchParams(clicks ? "" : location.search);
        const names = asked.get("tables");
        const same = window.dash_clientside.no_update;
        return [asked.get("window") ?? "", names === null ? (clicks ? same : DEFAULT) : names.split(",").filter(Boolean)];
      },
      remember(text, names) {
        const asked = new URLSearchParams();
        if (text) asked.set("window", text);
        if (names?.join() !== DEFAULT.join()) asked.set("tables", (names ?? []).join());
        keepAddress(asked.size ? `?${asked}` : "", location.hash);
        return "";
      },
    },
  });
})();

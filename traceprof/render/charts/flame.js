"use strict";
/* Flame graphs: a click zooms, the arrow keys move, a search dims the other boxes. With two runs, a box is as
   wide as both together, and its color shows the change. */
(() => {
  const ROW_PX = 20;
  const LEAST_RATIO = 0.001;
  const UNITS = {
    ns: [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]],
    bytes: [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]],
  };
  const words = (value, unit) => {
    const [factor, name] = UNITS[unit].find(([f]) => Math.abs(value) >= f) ?? UNITS[unit].at(-1);
    return `${Number((value / factor).toPrecision(3))}\u00a0${name}`;
  };
  const share = (part, all) => `${Number(((100 * part) / (all || 1)).toPrecision(3))}%`;
  const make = (tag, more) => Object.assign(document.createElement(tag), more);

  /* The file of "train.py(42): step" and of "train.py:42 step", the namespace of "aten::mm", else the name. */
  function moduleOf(name) {
    const file = /^(.+?)(?:\(\d+\): |:\d+ )/.exec(name);
    return file ? file[1] : name.split("::")[0].replace(/\d+/g, "");
  }

  /* "step train.py:42": a narrow box shows the function, and the whole name is in the line below. */
  function labelOf(name) {
    const frame = /^(?:.*\/)?([^/]+?)(?:\((\d+)\): |:(\d+) )(.+)$/.exec(name);
    return frame ? `${frame[4]} ${frame[1]}:${frame[2] ?? frame[3]}` : name;
  }

  function hueOf(text) {
    let hash = 7;
    for (const letter of text) hash = (hash * 31 + letter.codePointAt(0)) % 9973;
    return (hash * 137) % 360;
  }

  class Flame {
    constructor(figure) {
      Object.assign(this, JSON.parse(figure.querySelector("script").textContent));
      this.children = this.names.map(() => []);
      this.parents.forEach((parent, node) => parent >= 0 && this.children[parent].push(node));
      this.modules = this.names.map(moduleOf);
      this.measure = this.measures[0];
      this.isByChange = Boolean(this.measure.base);
      this.top = 0;
      this.sought = "";
      this.area = make("div", { className: "boxes" });
      this.status = make("p", { className: "note" });
      this.status.setAttribute("role", "status");
      this.boxes = this.names.map((name, node) => this.newBox(name, node));
      this.area.append(...this.boxes);
      figure.prepend(this.newTools(), this.area, this.status);
      this.layout();
    }

    newBox(name, node) {
      const box = make("button", { type: "button", textContent: labelOf(name), tabIndex: node ? -1 : 0 });
      box.style.setProperty("--hue", hueOf(this.modules[node]));
      box.addEventListener("click", () => this.zoom(node));
      box.addEventListener("pointerenter", () => this.tell(node));
      box.addEventListener("focus", () => this.tell(node));
      box.addEventListener("keydown", (event) => this.move(event, node));
      return box;
    }

    newTools() {
      const tools = make("div", { className: "tools" });
      const search = make("input", { type: "search", placeholder: "Search the flame graph" });
      search.setAttribute("aria-label", "Search the flame graph");
      search.addEventListener("input", () => this.search(search.value));
      tools.append(search);
      if (this.measures.length > 1) {
        const choice = make("select", { ariaLabel: "Width of the boxes" });
        choice.append(...this.measures.map(({ title }) => make("option", { textContent: title })));
        choice.addEventListener("change", () => {
          this.measure = this.measures[choice.selectedIndex];
          this.layout();
        });
        tools.append(choice);
      }
      if (this.measure.base) {
        const colors = make("select", { ariaLabel: "Color of the boxes" });
        colors.append(...["Color: change", "Color: module"].map((textContent) => make("option", { textContent })));
        colors.addEventListener("change", () => {
          this.isByChange = colors.selectedIndex === 0;
          this.layout();
        });
        tools.append(colors);
      }
      return tools;
    }

    sizeOf(node) {
      return this.measure.values[node] + (this.measure.base?.[node] ?? 0);
    }

    layout() {
      for (const box of this.boxes) box.hidden = true;
      const chain = [];
      for (let node = this.top; node >= 0; node = this.parents[node]) chain.unshift(node);
      chain.forEach((node, depth) => this.show(node, 0, 1, depth));
      this.deepest = chain.length - 1;
      this.fill(this.top, 0, 1, chain.length);
      this.area.style.height = `${ROW_PX * (this.deepest + 1)}px`;
      this.tell(this.top);
    }

    fill(parent, left, width, depth) {
      const ordered = [...this.children[parent]].sort((a, b) => this.sizeOf(b) - this.sizeOf(a));
      for (const node of ordered) {
        const own = (width * this.sizeOf(node)) / (this.sizeOf(parent) || 1);
        if (own < LEAST_RATIO) break;
        this.show(node, left, own, depth);
        this.fill(node, left, own, depth + 1);
        left += own;
      }
    }

    show(node, left, width, depth) {
      const box = this.boxes[node];
      this.deepest = Math.max(this.deepest ?? 0, depth);
      box.hidden = false;
      Object.assign(box.style, { left: `${100 * left}%`, width: `${100 * width}%`, top: `${ROW_PX * depth}px` });
      box.classList.toggle("dim", this.sought !== "" && !this.isFound(node));
      box.classList.toggle("root", node === 0);
      this.paint(box, node);
    }

    /* Full color: the box changed by half of itself. */
    paint(box, node) {
      const { values, base } = this.measure;
      box.classList.toggle("change", this.isByChange);
      if (!this.isByChange) return;
      const change = (values[node] - base[node]) / (Math.max(values[node], base[node]) || 1);
      box.classList.toggle("longer", change > 0);
      box.style.setProperty("--part", `${Math.min(60, 120 * Math.abs(change)).toFixed(0)}%`);
    }

    isFound(node) {
      return this.names[node].toLowerCase().includes(this.sought);
    }

    search(text) {
      this.sought = text.trim().toLowerCase();
      this.layout();
      if (!this.sought) return;
      // A box inside another match is part of it.
      const outermost = this.names.map((_, node) => node).filter((node) => {
        let above = this.parents[node];
        while (above > 0 && !this.isFound(above)) above = this.parents[above];
        return node > 0 && this.isFound(node) && above <= 0;
      });
      const sum = outermost.reduce((all, node) => all + this.measure.values[node], 0);
      const { unit, values } = this.measure;
      this.status.textContent = `${outermost.length} matching: ${words(sum, unit)} (${share(sum, values[0])} of all)`;
    }

    zoom(node) {
      this.top = node;
      this.layout();
      if (node && window.traceprof?.search) this.status.append(" ", this.newLink(this.names[node]));
    }

    newLink(name) {
      const link = make("button", { type: "button", className: "find", textContent: "Find in the timeline" });
      link.addEventListener("click", () => {
        window.traceprof.toolbar.search.value = name;
        window.traceprof.search(name);
        document.getElementById("traceprof-timeline").scrollIntoView();
      });
      return link;
    }

    tell(node) {
      const { unit, values, base } = this.measure;
      const own = words(values[node], unit);
      const change = base && values[node] - base[node];
      const size = base
        ? `${words(base[node], unit)} → ${own} (${change ? (change < 0 ? "−" : "+") + words(Math.abs(change), unit) : "no change"})`
        : `${own} (${share(values[node], values[0])} of all)`;
      const times = this.counts[node] ? `, ${this.counts[node].toLocaleString("en")}×` : "";
      const about = `${this.names[node]}: ${size}${times}`;
      this.boxes[node].title = about;
      this.status.textContent = about;
    }

    move(event, node) {
      const row = this.children[this.parents[node]]?.filter((one) => !this.boxes[one].hidden) ?? [];
      row.sort((a, b) => this.sizeOf(b) - this.sizeOf(a));
      const longest = this.children[node].filter((one) => !this.boxes[one].hidden).sort((a, b) => this.sizeOf(b) - this.sizeOf(a))[0];
      const beside = (by) => row[row.indexOf(node) + by];
      const to = { ArrowUp: this.parents[node], ArrowDown: longest, ArrowLeft: beside(-1), ArrowRight: beside(1) }[event.key];
      if (event.key === "Escape") this.zoom(0);
      else if (to === undefined || to < 0) return;
      else this.boxes[to].focus();
      event.preventDefault();
      event.stopPropagation();
    }
  }

  for (const figure of document.querySelectorAll("figure.flame")) new Flame(figure);

  /* Of several pairs of steps, show the flame graph of the one that the address marks. */
  function showMarkedPair() {
    const pairs = [...document.querySelectorAll(".pair[data-from]")];
    const marked = /[#&]mark=(-?\d+)\.\./.exec(location.hash);
    if (!marked || !pairs.length) return;
    const at = Number(marked[1]);
    const isMarked = ({ dataset }) => Number(dataset.from) <= at && at < Number(dataset.to);
    for (const pair of pairs) pair.hidden = !isMarked(pair);
    document.querySelector("[data-others]").hidden = pairs.some(isMarked);
  }

  window.addEventListener("hashchange", showMarkedPair);
  showMarkedPair();
})();

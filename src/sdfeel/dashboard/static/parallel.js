// Parallel coordinates: a line for every run, through all keys in which runs differ, to what the run reached.

import { h, svg } from "./dom.js";
import { count, percent } from "./format.js";
import { fitting, scaleFor } from "./scale.js";
import { differing, value } from "./values.js";

/** @typedef {import("./values.js").Run} Run */
const [HEIGHT, TOP, BOTTOM, SIDE, ROOM, STOPS] = [300, 34, 10, 46, 105, 9]; // ROOM: pixels from axis to axis, for their names

// A key's last part; of a section's name, the section.
const title = (/** @type {string} */ key) => key.replace(/\.name$/, "").split(".").at(-1) ?? key;

export class Parallel {
  /** @param {{extra: () => string[], choose: (names: string[]) => void}} told */
  constructor({ extra, choose }) {
    this.extra = extra;
    this.choose = choose;
    /** @type {Run[]} */ this.runs = [];
    /** @type {string[]} in which runs differ, those that somebody asked for first, and what came out */ this.all = [];
    /** @type {string[]} for which there is room */ this.keys = [];
    /** @type {Map<string, [number, number]>} pixels of an axis between which runs are picked out */ this.brushes = new Map();
    this.picture = h("div", { class: "parallel" });
    this.left = h("p", { class: "soft note" });
    this.said = h("span", { class: "soft", role: "status" });
    this.take = h("button", { type: "button", hidden: true, onclick: () => this.choose(this.picked().map((run) => run.name)) }, "Choose these");
    this.clear = h("button", { type: "button", hidden: true, onclick: () => { this.brushes.clear(); this.draw(); } }, "Show all lines");
    this.element = h("div", {}, h("p", { class: "soft note" }, "A line is a run; the stronger its colour, the more it reached. Drag along an axis to pick runs out."), this.picture, this.left, h("div", { class: "bar" }, this.said, this.take, this.clear));
    this.draw = fitting(this.picture, (width) => this.paint(width));
  }

  /** @param {Run[]} runs */
  async update(runs) {
    const outcome = runs.some((run) => run.accuracy !== null) ? "accuracy" : "loss";
    const keys = (await differing(runs)).filter((key) => !/^(tracking|checkpoint|evaluation)\./.test(key));
    this.runs = runs.filter((run) => run[outcome] !== null);
    const wanted = this.extra().map((key) => keys.find((each) => each === key || each.endsWith(`.${key}`)) ?? key);
    this.all = [...new Set([...wanted, ...keys])].filter((key) => key !== outcome && this.runs.some((run) => this.known(run, key)));
    this.all.push(outcome);
    this.draw();
  }

  known(run, key) { return value(run, key) !== undefined && value(run, key) !== null; }

  paint(width) {
    const room = Math.max(2, Math.floor((width - 2 * SIDE) / ROOM));
    this.keys = [...this.all.slice(0, -1).slice(0, room), ...this.all.slice(-1)];
    for (const key of this.brushes.keys()) if (!this.keys.includes(key)) this.brushes.delete(key);
    const out = this.all.slice(0, -1).slice(room).map(title);
    this.left.textContent = out.length ? `No room for ${out.join(", ")}: the axes of added columns come first.` : "";
    if (!this.runs.length || this.keys.length < 2) {
      this.picture.replaceChildren(h("p", { class: "soft" }, this.runs.length ? "These runs have the same experiment." : "No run here has been measured yet."));
      return;
    }
    const x = this.keys.map((_, index) => SIDE + (index / (this.keys.length - 1)) * (width - 2 * SIDE));
    this.scales = this.keys.map((key) => scaleFor(this.runs.filter((run) => this.known(run, key)).map((run) => value(run, key)), HEIGHT - BOTTOM, TOP, key === "accuracy" ? percent : undefined));
    const last = this.scales.at(-1);
    const share = (run) => (HEIGHT - BOTTOM - last.place(value(run, this.keys.at(-1)))) / (HEIGHT - BOTTOM - TOP);
    const better = this.keys.at(-1) === "accuracy" ? share : (run) => 1 - share(run);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": `${this.runs.length} runs over ${this.keys.join(", ")}; the table above has the numbers.` });
    const picked = new Set(this.picked());
    for (const run of this.runs) {
      const points = this.keys.map((key, index) => [x[index], this.known(run, key) ? this.scales[index].place(value(run, key)) : null]).filter(([, y]) => y !== null);
      picture.append(svg("path", { d: `M${points.map((each) => each.join(" ")).join("L")}`, class: picked.has(run) ? "line" : "line faded", "data-name": run.name, style: { stroke: `var(--scale-${2 + Math.round(Math.max(0, Math.min(1, better(run))) * (STOPS - 3))})` } }, svg("title", {}, run.name)));
    }
    this.keys.forEach((key, index) => picture.append(this.axis(key, x[index], this.scales[index], index)));
    this.picture.replaceChildren(picture);
    const some = this.brushes.size > 0;
    this.said.textContent = some ? `${count(picked.size)} of ${count(this.runs.length)} runs are picked out` : "";
    this.take.hidden = this.clear.hidden = !some;
  }

  axis(key, x, scale, index) {
    const brush = this.brushes.get(key);
    const right = index === this.keys.length - 1;
    const hit = svg("rect", { x: x - 12, y: TOP - 4, width: 24, height: HEIGHT - TOP - BOTTOM + 8, class: "hit" });
    hit.addEventListener("pointerdown", (event) => this.drag(/** @type {PointerEvent} */ (event), key, hit));
    return svg("g", { class: "axes" },
      svg("line", { x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM, class: "tick" }),
      svg("text", { x, y: 14, "text-anchor": index === 0 ? "start" : right ? "end" : "middle", class: "name", dx: index === 0 ? -SIDE + 4 : right ? SIDE - 4 : 0 }, title(key), svg("title", {}, key)),
      scale.ticks.map((tick) => svg("text", { x: x + (right ? 5 : -5), y: tick.at + 4, "text-anchor": right ? "start" : "end", class: "value" }, tick.text)),
      brush && svg("rect", { x: x - 7, y: Math.min(...brush), width: 14, height: Math.abs(brush[1] - brush[0]), class: "brush" }), hit);
  }

  /** Runs that pass through all brushes. */
  picked() {
    return this.runs.filter((run) => [...this.brushes].every(([key, ends]) => {
      const y = this.scales[this.keys.indexOf(key)].place(value(run, key));
      return y !== null && y >= Math.min(...ends) && y <= Math.max(...ends);
    }));
  }

  drag(event, key, hit) {
    const box = this.picture.getBoundingClientRect();
    const at = (each) => Math.max(TOP, Math.min(HEIGHT - BOTTOM, each.clientY - box.top));
    const begin = at(event);
    const move = (each) => {
      if (Math.abs(at(each) - begin) > 4) this.brushes.set(key, [begin, at(each)]); else this.brushes.delete(key);
      this.draw();
    };
    const end = () => { removeEventListener("pointermove", move); removeEventListener("pointerup", end); };
    hit.releasePointerCapture?.(event.pointerId);
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
    event.preventDefault();
  }
}

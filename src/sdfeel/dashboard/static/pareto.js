// What was reached against what it cost, and the runs that no other beats at both.

import { choice, h, link, svg, table } from "./dom.js";
import { amount, duration, percent, significant } from "./format.js";
import { colour } from "./look.js";
import { fitting, numbers } from "./scale.js";

/** @typedef {import("./values.js").Run} Run */
const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [300, 58, 16, 12, 40];
const COSTS = [
  { key: "seconds", title: "time", text: duration },
  { key: "bytes", title: "data moved", text: amount },
  { key: "joules", title: "modelled energy", text: (/** @type {number} */ value) => `${significant(value)} J` },
];

/** The runs that no other beats at both, the cheapest first.
 * @param {Run[]} runs
 * @param {string} cost
 */
export function frontier(runs, cost) {
  const found = [];
  let best = -Infinity;
  for (const run of [...runs].sort((a, b) => a[cost] - b[cost] || b.accuracy - a.accuracy)) {
    if (run.accuracy > best) { found.push(run); best = run.accuracy; }
  }
  return found;
}

export class Pareto {
  constructor() {
    this.cost = COSTS[0];
    /** @type {Run[]} */ this.runs = [];
    this.picture = h("div", { class: "pareto" });
    this.list = h("div", {});
    this.element = h("div", {}, h("div", { class: "bar" }, choice("Cost", COSTS.map((each) => each.title), 0, (index) => { this.cost = COSTS[index]; this.draw(); })), this.picture, this.list);
    this.draw = fitting(this.picture, (width) => this.paint(width));
  }

  /** @param {Run[]} runs */
  update(runs) { this.runs = runs; this.draw(); }

  /** @param {number} width */
  paint(width) {
    const { key, title, text } = this.cost;
    const runs = this.runs.filter((run) => typeof run.accuracy === "number" && typeof run[key] === "number" && run[key] > 0);
    this.list.replaceChildren();
    if (!runs.length) { this.picture.replaceChildren(h("p", { class: "soft" }, `No run here has both an accuracy and a measured ${title}.`)); return; }
    const best = frontier(runs, key);
    const x = numbers(runs.map((run) => run[key]), LEFT + 12, width - RIGHT - 12, text, 90);
    const y = numbers(runs.map((run) => run.accuracy), HEIGHT - BOTTOM - 10, TOP + 8, percent);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "group", "aria-label": `Accuracy against ${title}, ${runs.length} runs; ${best.length} of them are beaten by no other.` });
    picture.append(svg("g", { class: "axes", "aria-hidden": "true" },
      x.ticks.map((tick) => [svg("line", { x1: tick.at, x2: tick.at, y1: TOP, y2: HEIGHT - BOTTOM }), svg("text", { x: tick.at, y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, tick.text)]),
      y.ticks.map((tick) => [svg("line", { x1: LEFT, x2: width - RIGHT, y1: tick.at, y2: tick.at }), svg("text", { x: LEFT - 6, y: tick.at + 4, "text-anchor": "end" }, tick.text)]),
      svg("text", { x: (LEFT + width) / 2, y: HEIGHT - 6, "text-anchor": "middle", class: "name" }, title)));
    const steps = best.map((run, index) => `${index ? `H${x.place(run[key])}V` : `M${x.place(run[key])} `}${y.place(run.accuracy)}`).join("");
    picture.append(svg("path", { d: `${steps}H${width - RIGHT}`, class: "frontier" }));
    const top = new Set(best);
    for (const run of runs) {
      picture.append(svg("a", { href: link("/run", { name: run.name }), class: top.has(run) ? "point best-point" : "point", "aria-label": `${run.name}: ${percent(run.accuracy)}, ${text(run[key])}` },
        svg("circle", { cx: x.place(run[key]), cy: y.place(run.accuracy), r: top.has(run) ? 6 : 4, style: { fill: colour(run.style) } }), svg("title", {}, `${run.name}: ${percent(run.accuracy)}, ${text(run[key])}`)));
    }
    this.picture.replaceChildren(picture);
    const rows = best.map((run) => h("tr", {}, h("td", { class: "wrap" }, h("a", { href: link("/run", { name: run.name }) }, run.name)), h("td", { class: "number" }, percent(run.accuracy)), h("td", { class: "number" }, text(run[key]))));
    this.list.replaceChildren(h("p", { class: "soft note" }, "Runs on the line: no other reached as much for less."),
      h("div", { class: "short" }, table("runs that no other beats", ["run", h("th", { scope: "col", class: "number" }, "accuracy"), h("th", { scope: "col", class: "number" }, title)], rows)));
  }
}

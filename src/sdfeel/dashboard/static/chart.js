// A line chart of our own: a line per run, a band where a line is a mean, a cursor for mouse and keys.

import { choice, h, svg } from "./dom.js";
import { significant, unitFor } from "./format.js";

const HEIGHT = 236;
const EDGE = { left: 52, right: 14, top: 10, bottom: 40 };
const COLOURS = 7;
const DASHES = 4;

const known = (value) => value !== null && value !== undefined;

function ticks(low, high, most) {
  const span = high - low || 1;
  const raw = span / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((size) => size * power).find((size) => size >= raw * 0.999);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) {
    found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  }
  return found;
}

function powers(low, high) {
  const found = [];
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / 6));
  for (let power = first; power <= last; power += every) found.push(10 ** power);
  return found.filter((value) => value >= low / 1.0001 && value <= high * 1.0001);
}

export class Chart {
  // cost: {name, units}, measure: {name, share}
  constructor(cost, measure) {
    this.cost = cost;
    this.measure = measure;
    this.lines = [];
    this.target = null;
    this.cursor = null;
    this.note = h("output", { class: "readout", "aria-live": "polite" });
    this.holder = h("div", { class: "plot" });
    this.element = h("figure", { class: "chart" }, h("figcaption", {}, measure.name), this.holder, this.note);
    new ResizeObserver(() => this.draw()).observe(this.holder);
  }

  // lines: [{label, index, x, y, low, high}]
  update(lines, target = null) {
    this.lines = lines;
    this.target = this.measure.share ? target : null;
    this.draw();
  }

  scales(width) {
    const xs = this.lines.flatMap((line) => line.x.filter(known));
    const most = Math.max(0, ...xs) || 1;
    this.unit = unitFor(most, this.cost.units);
    const right = width - EDGE.right;
    const bottom = HEIGHT - EDGE.bottom;
    this.x = (value) => EDGE.left + (value / most) * (right - EDGE.left);
    this.most = most;
    const ys = this.lines.flatMap((line) => [line.y, line.low ?? [], line.high ?? []].flat().filter(known));
    if (this.target !== null && ys.length) ys.push(this.target);
    if (!ys.length) return false;
    let low = Math.min(...ys);
    let high = Math.max(...ys);
    this.log = !this.measure.share && low > 0 && high > 1000 * low;
    if (!this.log) {
      const room = (high - low || Math.abs(high) || 1) * 0.06;
      low = low >= 0 && low - room < 0 ? 0 : low - room;
      high += room;
    }
    const at = this.log ? Math.log10 : (value) => value;
    this.y = (value) => bottom - ((at(value) - at(low)) / (at(high) - at(low) || 1)) * (bottom - EDGE.top);
    this.yTicks = this.log ? powers(low, high) : ticks(low, high, 4);
    return true;
  }

  draw() {
    const width = Math.max(240, this.holder.clientWidth);
    if (!this.holder.clientWidth) return;
    const measured = this.scales(width);
    const label = `${this.measure.name} against ${this.cost.name}, ${this.lines.length} line${this.lines.length === 1 ? "" : "s"}. The left and right arrow keys step through the values.`;
    const picture = svg("svg", {
      width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": label,
      onkeydown: (event) => this.key(event),
      onpointermove: (event) => this.point(event),
      onpointerleave: () => this.mark(null),
      onblur: () => this.mark(null),
    });
    picture.append(this.axes(width, measured));
    if (measured) picture.append(...this.bands(), ...this.targetLine(width), ...this.paths());
    this.marks = svg("g", { class: "marks" });
    picture.append(this.marks);
    const focused = this.holder.contains(document.activeElement);
    const cursor = this.cursor; // the old picture forgets it when it loses the focus
    this.holder.replaceChildren(picture);
    if (focused) picture.focus();
    this.mark(cursor);
  }

  axes(width, measured) {
    const bottom = HEIGHT - EDGE.bottom;
    const group = svg("g", { class: "axes" });
    for (const value of measured ? this.yTicks : []) {
      const y = this.y(value);
      const text = this.measure.share ? `${+(100 * value).toFixed(1)}` : this.log ? value.toExponential(0).replace("e+", "e") : `${+value.toPrecision(6)}`;
      group.append(svg("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y, y2: y }),
        svg("text", { x: EDGE.left - 8, y: y + 4, "text-anchor": "end" }, text));
    }
    for (const value of ticks(0, this.most / this.unit.size, width < 330 ? 3 : 5)) {
      const x = this.x(value * this.unit.size);
      group.append(svg("line", { x1: x, x2: x, y1: bottom, y2: bottom + 4, class: "tick" }),
        svg("text", { x, y: bottom + 17, "text-anchor": "middle" }, `${+value.toPrecision(6)}`));
    }
    group.append(svg("line", { x1: EDGE.left, x2: width - EDGE.right, y1: bottom, y2: bottom, class: "tick" }));
    const unit = this.unit.name ? ` (${this.unit.name})` : "";
    group.append(svg("text", { x: (EDGE.left + width - EDGE.right) / 2, y: HEIGHT - 6, "text-anchor": "middle", class: "name" }, this.cost.name + unit));
    if (!measured) group.append(svg("text", { x: width / 2, y: HEIGHT / 2 - 10, "text-anchor": "middle" }, "nothing measured yet"));
    return group;
  }

  bands() {
    return this.lines.filter((line) => line.low).map((line) => {
      const points = line.x.map((x, i) => [x, line.low[i], line.high[i]]).filter((each) => each.every(known));
      const there = points.map(([x, , high]) => `${this.x(x)},${this.y(high)}`);
      const back = points.map(([x, low]) => `${this.x(x)},${this.y(low)}`).reverse();
      return svg("polygon", { points: [...there, ...back].join(" "), class: "band", style: { fill: colour(line.index) } });
    });
  }

  targetLine(width) {
    if (this.target === null) return [];
    const y = this.y(this.target);
    return [svg("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y, y2: y, class: "target" })];
  }

  paths() {
    return this.lines.map((line) => {
      let path = "";
      let drawing = false;
      line.x.forEach((x, i) => {
        const there = known(x) && known(line.y[i]);
        if (there) path += `${drawing ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(line.y[i]).toFixed(1)}`;
        drawing = there;
      });
      if (line.x.length === 1 && path) path += "h0.01";
      return svg("path", { d: path, class: `curve dash-${line.index % DASHES}`, style: { stroke: colour(line.index) } });
    });
  }

  point(event) {
    const box = event.currentTarget.getBoundingClientRect();
    const share = (event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right);
    this.mark(Math.max(0, Math.min(1, share)) * this.most);
  }

  key(event) {
    const all = [...new Set(this.lines.flatMap((line) => line.x.filter(known)))].sort((a, b) => a - b);
    if (!all.length || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const now = this.cursor ?? (event.key === "ArrowLeft" ? Infinity : -1);
    const next = {
      ArrowRight: all.find((x) => x > now), ArrowLeft: all.findLast((x) => x < now), Home: all[0], End: all.at(-1),
    }[event.key];
    if (next !== undefined) this.mark(next);
  }

  mark(value) {
    this.cursor = value;
    this.marks?.replaceChildren();
    if (value === null || !this.y) { this.note.textContent = ""; return; }
    const said = [];
    let at = value;
    for (const line of this.lines) {
      let best = -1;
      line.x.forEach((x, i) => {
        if (known(x) && known(line.y[i]) && (best < 0 || Math.abs(x - value) < Math.abs(line.x[best] - value))) best = i;
      });
      if (best < 0) continue;
      at = this.lines.length === 1 ? line.x[best] : value;
      this.marks.append(svg("circle", { cx: this.x(line.x[best]), cy: this.y(line.y[best]), r: 4, style: { fill: colour(line.index) } }));
      const text = this.measure.share ? `${(100 * line.y[best]).toFixed(1)} %` : significant(line.y[best]);
      said.push(this.lines.length === 1 ? text : `${line.short ?? line.label}: ${text}`);
    }
    const unit = this.unit.name ? ` ${this.unit.name}` : "";
    this.marks.prepend(svg("line", { x1: this.x(at), x2: this.x(at), y1: EDGE.top, y2: HEIGHT - EDGE.bottom, class: "cursor" }));
    this.note.textContent = `${significant(at / this.unit.size)}${unit} · ${said.slice(0, 6).join(" · ")}${said.length > 6 ? " …" : ""}`;
  }
}

export const colour = (index) => `var(--line-${index % COLOURS})`;

export function legend(lines, target, text) {
  const items = lines.map((line) => h("li", {},
    svg("svg", { width: 34, height: 12, "aria-hidden": "true" }, svg("path", { d: "M1 6h32", class: `curve dash-${line.index % DASHES}`, style: { stroke: colour(line.index) } })),
    h("span", {}, line.label)));
  if (target !== null && target !== undefined) {
    items.push(h("li", {}, svg("svg", { width: 34, height: 12, "aria-hidden": "true" }, svg("path", { d: "M1 6h32", class: "target" })), h("span", {}, text)));
  }
  return h("ul", { class: "legend", "aria-label": "legend" }, items);
}

// All measures against one cost that can be chosen.
export class Charts {
  constructor() {
    this.cost = 0;
    this.shape = "";
    this.grid = h("div", { class: "grid" });
    this.choices = h("div", { class: "bar" });
    this.legend = h("div", {});
    this.element = h("div", {}, this.choices, this.legend, this.grid);
  }

  update(data, targetText = "") {
    this.data = data;
    this.targetText = targetText;
    const shape = JSON.stringify([data.costs.map((c) => c.name), data.measures]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.choices.replaceChildren(h("span", { class: "soft" }, "against"), choiceOf(data.costs, this.cost, (index) => { this.cost = index; this.shape = ""; this.update(this.data, this.targetText); }));
      this.charts = data.measures.map((measure) => new Chart(data.costs[this.cost], measure));
      this.grid.replaceChildren(...this.charts.map((chart) => chart.element));
    }
    const lines = data.lines.map((line, index) => ({ ...line, index }));
    this.charts.forEach((chart, m) => {
      chart.update(lines.map((line) => ({
        label: line.label, short: line.short, index: line.index, x: line.x[this.cost], y: line.y[m], low: line.low?.[m], high: line.high?.[m],
      })), data.target);
    });
    if (lines.length > 1 || data.target !== null) this.legend.replaceChildren(legend(lines, data.target, this.targetText));
  }
}

const choiceOf = (costs, chosen, choose) => choice("Horizontal axis", costs.map((cost) => cost.name), chosen, choose);

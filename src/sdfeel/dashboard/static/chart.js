// Line charts: uPlot draws, we say what a line means, and read it out to mouse, finger, keys and screen readers.

import { choice, h } from "./dom.js";
import { significant, unitFor } from "./format.js";
import { colour, dash, legend } from "./look.js";

const HEIGHT = 236;
const EMPTY = "nothing measured yet";
const FADED = 0.18;
const { uPlot } = /** @type {any} */ (window);

const known = (value) => value !== null && value !== undefined;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// An exponential mean, without the pull towards zero that its first values would have.
export function smoothed(values, weight) {
  if (!weight) return values;
  let [sum, total] = [0, 0];
  return values.map((value) => {
    if (!known(value)) return value;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

// All lines on one axis: `undefined` where a line has no point there, `null` where it has a gap.
export function joined(lines) {
  const axis = [...new Set(lines.flatMap((line) => line.x.filter(known)))].sort((a, b) => a - b);
  const place = new Map(axis.map((x, index) => [x, index]));
  const columns = lines.map((line) => {
    const column = Array(axis.length).fill(undefined);
    line.x.forEach((x, index) => {
      if (known(x)) column[place.get(x)] = line.y[index] ?? null;
    });
    return column;
  });
  return [axis, ...columns];
}

// Where on the shared axis a line is nearest to a value; null where the line has not begun or has ended.
export function nearest(axis, column, value) {
  let [first, last, best] = [null, null, null];
  for (let index = 0; index < axis.length; index += 1) {
    if (!known(column[index])) continue;
    first ??= axis[index];
    last = axis[index];
    if (best === null || Math.abs(axis[index] - value) < Math.abs(axis[best] - value)) best = index;
  }
  const room = axis.length ? (axis.at(-1) - axis[0]) * 1e-9 : 0;
  return best !== null && value >= first - room && value <= last + room ? best : null;
}

class Chart {
  // cost: {name, units}, measure: {name, share}, all: the Charts that it belongs to
  constructor(cost, measure, all) {
    this.cost = cost;
    this.measure = measure;
    this.all = all;
    Object.assign(this, { lines: [], target: null, plot: null, shape: "" });
    this.note = h("output", { class: "readout", "aria-live": "polite" });
    this.tip = h("div", { class: "tip", "aria-hidden": "true", hidden: true });
    this.holder = h("div", { class: "plot", tabindex: "0", role: "img" });
    this.element = h("figure", { class: "chart" }, h("figcaption", {}, measure.name), this.holder, this.tip, this.note);
    this.holder.addEventListener("keydown", (event) => this.key(event));
    this.holder.addEventListener("blur", () => this.all.point(null));
    new ResizeObserver(() => this.resize()).observe(this.holder);
  }

  // lines: [{label, short, style, x, y, low, high}]
  update(lines, target) {
    this.lines = lines;
    this.target = this.measure.share && known(target) ? 100 * target : null;
    this.draw();
  }

  resize() {
    const width = this.holder.clientWidth;
    if (!width) return;
    if (this.plot && this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
    else if (!this.plot) this.draw();
  }

  // What uPlot draws: for every line its curve, and where there are any, the curve before smoothing and a band.
  series() {
    const most = Math.max(0, ...this.lines.flatMap((line) => line.x.filter(known))) || 1;
    this.unit = unitFor(most, this.cost.units);
    const size = this.measure.share ? 100 : 1;
    const flat = this.lines.flatMap((line) => line.y.filter(known));
    const spread = flat.length && Math.min(...flat) > 0 && Math.max(...flat) > 1000 * Math.min(...flat);
    this.log = this.all.log === null ? !this.measure.share && Boolean(spread) : this.all.log;
    const x = (line) => line.x.map((value) => (known(value) && !(this.all.logX && value <= 0) ? value / this.unit.size : null));
    const y = (values) => values.map((value) => (known(value) && !(this.log && value <= 0) ? value * size : null));
    const found = [];
    this.lines.forEach((line, owner) => {
      const at = x(line);
      const raw = y(line.y);
      found.push({ owner, kind: "curve", x: at, y: smoothed(raw, this.all.smooth) });
      if (this.all.smooth) found.push({ owner, kind: "raw", x: at, y: raw });
      if (line.low) found.push({ owner, kind: "high", x: at, y: y(line.high) }, { owner, kind: "low", x: at, y: y(line.low) });
    });
    return found;
  }

  draw() {
    const width = this.holder.clientWidth;
    const parts = this.series();
    const many = this.lines.length;
    this.holder.setAttribute("aria-label", `${this.measure.name} against ${this.cost.name}, ${many} line${many === 1 ? "" : "s"}. The left and right arrow keys step through the values; plus and minus zoom, zero shows everything.`);
    this.empty = !parts.some((part) => part.y.some(known));
    if (!width) return;
    const data = joined(parts);
    const theme = [css("--ink"), css("--soft"), css("--faint"), css("--line-0")];
    const shape = JSON.stringify([parts.map((part) => [part.owner, part.kind, this.lines[part.owner].style]), this.unit.name, this.log, this.all.logX, this.empty, theme]);
    if (this.plot && shape === this.shape) {
      this.plot.batch(() => {
        this.plot.setData(data, false);
        this.scale();
      });
    } else {
      this.shape = shape;
      this.plot?.destroy();
      this.holder.replaceChildren();
      this.parts = parts;
      this.plot = this.empty ? null : new uPlot(this.options(width, parts, theme), data, this.holder);
      if (this.empty) this.holder.append(h("p", { class: "soft empty" }, EMPTY));
      else this.scale();
    }
    this.parts = parts;
    this.shown();
  }

  options(width, parts, theme) {
    const [, soft, faint] = theme;
    const font = '11.5px system-ui, "DejaVu Sans", sans-serif';
    const axis = { stroke: soft, font, ticks: { stroke: faint, size: 5 }, grid: { stroke: faint, width: 1 } };
    const unit = this.unit.name ? ` (${this.unit.name})` : "";
    const plain = (_, values) => values.map((value) => (known(value) ? (Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(0) : `${+value.toPrecision(6)}`) : ""));
    const bands = [];
    parts.forEach((part, index) => {
      if (part.kind === "high") bands.push({ series: [index + 1, index + 2], fill: `${this.ink(part.owner)}29` });
    });
    return {
      width, height: HEIGHT, legend: { show: false }, padding: [10, 12, 0, 0], bands, focus: { alpha: FADED },
      scales: { x: { time: false, distr: this.all.logX ? 3 : 1 }, y: { distr: this.log ? 3 : 1, range: this.log ? undefined : (_, low, high) => this.heights(low, high) } },
      axes: [
        { ...axis, grid: { show: false }, label: this.cost.name + unit, labelFont: font, labelSize: 18, size: 30, space: 56, values: plain },
        { ...axis, size: 50, space: 34, values: plain },
      ],
      series: [{}, ...parts.map((part) => this.look(part))],
      cursor: {
        y: false, drag: { x: true, y: false, setScale: false },
        points: { show: (plot, index) => this.dot(plot, index) },
        dataIdx: (plot, index, closest, value) => (!index ? closest : this.parts[index - 1].kind === "curve" ? nearest(plot.data[0], plot.data[index], value) : null),
        bind: { dblclick: () => () => { this.all.zoom(null); return null; } },
      },
      hooks: {
        setCursor: [(plot) => this.moved(plot)],
        setSelect: [(plot) => this.selected(plot)],
        draw: [(plot) => this.targetLine(plot, soft)],
        ready: [(plot) => this.touch(plot.over)],
      },
    };
  }

  heights(low, high) {
    const values = this.target === null ? [low, high] : [low, high, this.target];
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const room = (most - least || Math.abs(most) || 1) * 0.06;
    return [least >= 0 && least - room < 0 ? 0 : least - room, most + room];
  }

  ink(owner) { return css(colour(this.lines[owner].style, true)); }

  look(part) {
    const stroke = this.ink(part.owner);
    const style = { stroke, spanGaps: this.measure.own, points: { show: false }, show: !this.all.hidden.has(this.lines[part.owner].label) };
    if (part.kind === "curve") {
      const single = part.y.filter(known).length === 1;
      return { ...style, width: 1.9, dash: dash(this.lines[part.owner].style), points: { show: single, size: 7, fill: stroke } };
    }
    return part.kind === "raw" ? { ...style, stroke: `${stroke}55`, width: 1 } : { ...style, width: 0 };
  }

  dot(_plot, index) {
    if (!index || this.parts[index - 1].kind !== "curve") return false;
    const dot = h("div", { class: "dot" });
    dot.style.setProperty("background", this.ink(this.parts[index - 1].owner));
    return dot;
  }

  targetLine(plot, soft) {
    if (this.target === null) return;
    const y = plot.valToPos(this.target, "y", true);
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.strokeStyle = soft;
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.restore();
  }

  shown() { // what the legend has switched off or picked out
    if (!this.plot) return;
    this.parts.forEach((part, index) => {
      const show = !this.all.hidden.has(this.lines[part.owner].label);
      if (this.plot.series[index + 1].show !== show) this.plot.setSeries(index + 1, { show });
    });
    this.focus();
  }

  focus() {
    if (!this.plot) return;
    const index = this.parts.findIndex((part) => part.kind === "curve" && this.lines[part.owner].label === this.all.picked);
    if (index >= 0) this.plot.setSeries(index + 1, { focus: true });
    else this.plot.setSeries(null, { focus: false });
  }

  scale() {
    const axis = this.plot.data[0];
    const ends = [this.all.logX ? axis[0] : Math.min(0, axis[0]), axis.at(-1)];
    const [min, max] = this.all.range ? this.all.range.map((value) => value / this.unit.size) : ends;
    this.plot.setScale("x", { min, max: max > min ? max : min + 1 });
  }

  selected(plot) {
    const { left, width } = plot.select;
    if (width > 4) this.all.zoom([left, left + width].map((at) => plot.posToVal(at, "x") * this.unit.size));
    if (width) plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  moved(plot) {
    if (this.told) return; // by another chart
    const { left } = plot.cursor;
    this.all.point(known(left) && left >= 0 ? plot.posToVal(left, "x") * this.unit.size : null, this);
  }

  // A finger moves the cursor; the page still scrolls up and down.
  touch(over) {
    const move = (event) => {
      if (event.pointerType !== "touch") return;
      const box = over.getBoundingClientRect();
      this.plot.setCursor({ left: event.clientX - box.left, top: event.clientY - box.top });
    };
    over.addEventListener("pointerdown", move);
    over.addEventListener("pointermove", move);
  }

  // The values at a place, of all lines that are alive there, nearest to the pointer first.
  values(value) {
    const at = value / this.unit.size;
    const found = [];
    this.parts.forEach((part, index) => {
      if (part.kind !== "curve" || this.all.hidden.has(this.lines[part.owner].label)) return;
      const place = nearest(this.plot.data[0], this.plot.data[index + 1], at);
      if (place !== null) found.push({ line: this.lines[part.owner], x: this.plot.data[0][place], y: this.plot.data[index + 1][place] });
    });
    const { top } = this.plot.cursor;
    const height = known(top) && top >= 0 ? this.plot.posToVal(top, "y") : Infinity;
    return found.sort((a, b) => (Number.isFinite(height) ? Math.abs(a.y - height) - Math.abs(b.y - height) : b.y - a.y));
  }

  text(y) { return this.measure.share ? `${y.toFixed(1)} %` : significant(y); }

  // Show what is at a place; `own`: the pointer is over this very chart.
  mark(value, own) {
    if (!this.plot) return;
    this.told = true;
    if (!own) {
      const left = value === null ? -10 : this.plot.valToPos(value / this.unit.size, "x");
      this.plot.setCursor({ left, top: value === null ? -10 : 0 }, false);
      this.plot.setCursor({ left, top: -10 });
    }
    this.told = false;
    const found = value === null ? [] : this.values(value);
    const one = this.lines.length === 1;
    const unit = this.unit.name ? ` ${this.unit.name}` : "";
    const at = found.length && one ? found[0].x : value / this.unit.size;
    const place = `${significant(at)}${unit}`;
    const said = found.map(({ line, y }) => (one ? this.text(y) : `${line.short ?? line.label}: ${this.text(y)}`));
    this.note.textContent = value === null ? "" : `${place} · ${said.length ? said.join(" · ") : "no run is there"}`;
    this.note.classList.toggle("unseen", !one);
    this.tip.hidden = one || value === null || !own || !found.length;
    if (this.tip.hidden) return;
    this.tip.replaceChildren(h("b", {}, place), h("ul", {}, found.map(({ line, y }) => h("li", {}, h("i", { style: { background: `var(${colour(line.style, true)})` } }), h("span", {}, line.short ?? line.label), h("b", {}, this.text(y))))));
    const left = this.plot.valToPos(at, "x") + this.plot.over.offsetLeft;
    const right = left > this.holder.clientWidth / 2;
    this.tip.style.setProperty(right ? "right" : "left", `${right ? this.holder.clientWidth - left + 14 : left + 14}px`);
    this.tip.style.removeProperty(right ? "left" : "right");
  }

  key(event) {
    const axis = this.plot?.data[0] ?? [];
    const zooms = { "+": 0.5, "=": 0.5, "-": 2 };
    if (event.key in zooms) { event.preventDefault(); this.all.zoomBy(zooms[event.key]); return; }
    if (event.key === "0" || event.key === "Escape") { this.all.zoom(null); return; }
    if (!axis.length || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const now = this.all.at === null ? (event.key === "ArrowLeft" ? Infinity : -1) : this.all.at / this.unit.size;
    const room = Math.abs(now) * 1e-9;
    const next = { ArrowRight: axis.find((x) => x > now + room), ArrowLeft: axis.findLast((x) => x < now - room), Home: axis[0], End: axis.at(-1) }[event.key];
    if (next !== undefined) this.all.point(next * this.unit.size);
  }
}

// All measures against one cost that can be chosen; they share a zoom, a cursor and a legend.
export class Charts {
  // moment: called with the virtual seconds under the cursor, or null
  /** @param {(seconds: number | null) => void} moment */
  constructor(moment = () => {}) {
    this.moment = moment;
    Object.assign(this, { cost: 0, shape: "", log: null, logX: false, smooth: 0, range: null, at: null, hidden: new Set(), picked: null, charts: [] });
    this.grid = h("div", { class: "grid" });
    this.choices = h("div", { class: "bar" });
    this.legend = h("div", {});
    this.thinned = h("p", { class: "soft note" });
    this.back = h("button", { type: "button", hidden: true, onclick: () => this.zoom(null) }, "Show everything");
    const slider = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, "aria-label": "Smoothing" });
    slider.addEventListener("input", () => { this.smooth = +slider.value; this.redraw(); });
    this.settings = [
      h("span", { class: "soft" }, "y axis"), choice("Y axis", ["auto", "linear", "log"], 0, (index) => { this.log = [null, false, true][index]; this.redraw(); }),
      h("label", { class: "soft" }, h("input", { type: "checkbox", onchange: (event) => { this.logX = event.target.checked; this.redraw(); } }), " log x axis"),
      h("label", { class: "soft smooth" }, "smoothing ", slider), this.back];
    this.element = h("div", {}, this.choices, this.legend, this.grid, this.thinned);
    addEventListener("themechange", () => this.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  // With the data that are drawn already, there is nothing to do.
  update(data, targetText = "") {
    if (data === this.data && targetText === this.targetText) return;
    this.data = data;
    this.targetText = targetText;
    this.arrange();
  }

  arrange() {
    const data = this.data;
    const shape = JSON.stringify([data.costs.map((cost) => cost.name), data.measures, this.cost]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.cost = Math.min(this.cost, data.costs.length - 1);
      const against = choice("Horizontal axis", data.costs.map((cost) => cost.name), this.cost, (index) => { this.cost = index; this.zoom(null); this.arrange(); });
      this.choices.replaceChildren(h("span", { class: "soft" }, "against"), against, ...this.settings);
      this.charts = data.measures.map((measure) => new Chart(data.costs[this.cost], measure, this));
      this.grid.replaceChildren(...this.charts.map((chart) => chart.element));
    }
    this.redraw();
    const left = data.lines.filter((line) => line.y[0] && line.y[0].length < line.measured);
    this.thinned.textContent = left.length ? `${left[0].y[0].length.toLocaleString("en")} of ${left[0].measured.toLocaleString("en")} measurements${left.length > 1 ? ` of ${left[0].label}` : ""} are drawn${left.length > 1 ? ", and likewise of other lines" : ""}: all lows and highs are among them.` : "";
    this.names();
  }

  redraw() {
    this.charts.forEach((chart, m) => chart.update(this.data.lines.map((line) => ({
      label: line.label, short: line.short, style: line.style, x: line.x[this.cost], y: line.y[m], low: line.low?.[m], high: line.high?.[m],
    })), this.data.target));
  }

  names() {
    const { lines, target } = this.data;
    const shown = JSON.stringify([lines.map((line) => [line.label, line.style]), target, [...this.hidden]]);
    if (shown === this.legend.dataset.shown) return;
    this.legend.dataset.shown = shown;
    const turn = (label) => { this.hidden[this.hidden.has(label) ? "delete" : "add"](label); this.charts.forEach((chart) => chart.shown()); this.names(); };
    const only = (label) => { this.hidden = new Set(lines.map((line) => line.label).filter((each) => each !== label)); this.charts.forEach((chart) => chart.shown()); this.names(); };
    const pick = (label) => { this.picked = label; this.charts.forEach((chart) => chart.focus()); };
    const focused = this.legend.contains(document.activeElement) ? document.activeElement.textContent : null;
    this.legend.replaceChildren(...(lines.length > 1 || target !== null ? [legend(lines, target, this.targetText, { hidden: this.hidden, turn, only, pick })] : []));
    if (focused !== null) [...this.legend.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
  }

  // The cursor, in base units of the horizontal axis, in every chart at once.
  point(value, from = null) {
    if (value === this.at && value === null) return;
    this.at = value;
    this.charts.forEach((chart) => chart.mark(value, chart === from));
    this.moment(value === null ? null : this.seconds(value));
  }

  // Virtual seconds at a place on the axis, by the first line.
  seconds(value) {
    const line = this.data.lines[0];
    const place = nearest(line.x[this.cost], line.x[0], value);
    return place === null ? null : line.x[0][place];
  }

  zoom(range) {
    this.range = range;
    this.back.hidden = range === null;
    this.charts.forEach((chart) => chart.plot && chart.scale());
  }

  zoomBy(factor) {
    const chart = this.charts.find((each) => each.plot);
    if (!chart) return;
    const { min, max } = chart.plot.scales.x;
    const size = chart.unit.size;
    const middle = this.at ?? ((min + max) / 2) * size;
    const half = ((max - min) * size * factor) / 2;
    const end = chart.plot.data[0].at(-1) * size;
    const range = [Math.max(0, middle - half), Math.min(end, middle + half)];
    this.zoom(range[0] <= 0 && range[1] >= end ? null : range);
  }
}

// The servers and their links at a moment of the run.

import { choice, h, svg, table, whenSeen } from "./dom.js";
import { duration, significant } from "./format.js";
import { consensus } from "./consensus.js";

const STOPS = 9;
const LINKS = [
  { key: "traffic", title: "traffic", text: "exchanges since the previous moment" },
  { key: "age", title: "staleness", text: "time since the last exchange" },
];

const shade = (share) => Math.max(0, Math.min(STOPS - 1, Math.round(share * (STOPS - 1))));

export class Graph {
  constructor() {
    this.frame = null; // null: the newest
    this.peeked = null; // under another chart's cursor
    this.links = 0;
    this.whole = true; // colours count for the whole run
    this.picture = h("div", { class: "network" });
    this.side = h("div", { class: "side" });
    this.time = h("output", { class: "strong", "aria-live": "off" });
    this.slider = h("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "Moment of the run", class: "grow" });
    this.slider.addEventListener("input", () => { this.stop(); this.go(+this.slider.value); });
    this.button = h("button", { type: "button", class: "play", onclick: () => this.toggle() }, "▶ Play");
    this.element = h("div", {},
      h("div", { class: "bar" }, h("span", { class: "soft" }, "links by"),
        choice("Colour links by", LINKS.map((each) => each.title), 0, (index) => { this.links = index; this.draw(); }),
        h("span", { class: "soft" }, "colours for"),
        choice("Scale of the colours", ["whole run", "this moment"], 0, (index) => { this.whole = index === 0; this.draw(); })),
      h("div", { class: "halves" }, this.picture, this.side),
      h("div", { class: "bar player" }, this.button, this.slider, this.time));
  }

  update(data) {
    this.data = data;
    if (data.why || !data.frames.length) {
      this.element.replaceChildren(h("p", { class: "soft" }, data.why ?? "Nothing has been measured yet."));
      return;
    }
    this.peeked = null;
    this.slider.max = data.frames.length - 1;
    if (this.frame === null) this.slider.value = data.frames.length - 1;
    this.later ??= whenSeen(this.element, () => this.draw());
    this.later();
  }

  go(index) {
    this.frame = index >= this.data.frames.length - 1 ? null : index;
    this.slider.value = index;
    this.draw();
  }

  // Show the moment under another chart's cursor, and go back when it leaves.
  peek(seconds) {
    if (!this.data?.frames?.length || this.timer) return;
    const frames = this.data.frames;
    let best = null;
    frames.forEach((frame, index) => {
      if (seconds !== null && (best === null || Math.abs(frame.seconds - seconds) < Math.abs(frames[best].seconds - seconds))) best = index;
    });
    if (best === this.peeked) return;
    this.peeked = best;
    this.slider.value = best ?? this.frame ?? frames.length - 1;
    this.draw();
  }

  toggle() {
    if (this.timer) { this.stop(); return; }
    if (this.frame === null) this.go(0);
    this.button.textContent = "⏸ Pause";
    const pace = Math.max(60, Math.min(600, 8000 / this.data.frames.length));
    this.timer = setInterval(() => {
      const next = +this.slider.value + 1;
      this.go(next);
      if (next >= this.data.frames.length - 1) this.stop();
    }, pace);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = "▶ Play";
  }

  most(key, frame) {
    const values = (this.whole ? this.data.frames : [frame]).flatMap((each) => each[key].filter((value) => value !== null));
    return Math.max(0, ...values);
  }

  draw() {
    const data = this.data;
    const index = this.peeked ?? this.frame ?? data.frames.length - 1;
    const frame = data.frames[index];
    const kind = LINKS[this.links];
    const [far, busy] = [this.most("distances", frame), this.most(kind.key, frame)];
    this.time.textContent = `${duration(frame.seconds)} · iteration ${frame.iterations.toLocaleString("en")}`;
    this.slider.setAttribute("aria-valuetext", this.time.textContent);
    this.picture.replaceChildren(this.drawn(data, frame, kind, far, busy));
    const guessed = data.sampled && kind.key === "traffic" ? " (estimated)" : "";
    this.side.replaceChildren(
      scale("distance from the mean model", far, significant(far)),
      scale(`links: ${kind.text}${guessed}`, busy, kind.key === "age" ? duration(busy) : significant(busy)),
      consensus(data, index),
      this.servers(data, frame));
  }

  drawn(data, frame, kind, far, busy) {
    const size = Math.max(0.045, Math.min(0.15, 0.9 / Math.sqrt(data.places.length) / 2));
    const picture = svg("svg", { viewBox: "-1.25 -1.25 2.5 2.5", role: "img", "aria-label": `Graph of ${data.places.length} servers; the table beside it has the numbers.` });
    data.links.forEach(([a, b], index) => {
      const value = frame[kind.key][index];
      const step = value === null || !busy ? null : shade(value / busy);
      const words = value === null ? "no exchange yet" : kind.key === "age" ? `last exchange ${duration(value)} ago` : `${value} exchanges`;
      picture.append(svg("line", {
        x1: data.places[a][0], y1: -data.places[a][1], x2: data.places[b][0], y2: -data.places[b][1], class: value === null ? "never" : "edge",
        style: { stroke: step === null ? "var(--line)" : `var(--scale-${Math.max(1, step)})`, "stroke-width": step === null ? 0.012 : 0.014 + 0.03 * (step / STOPS) },
      }, svg("title", {}, `link ${a} - ${b}: ${words}`)));
    });
    data.places.forEach(([x, y], server) => {
      const value = frame.distances[server];
      const step = value === undefined || value === null || !far ? 0 : shade(value / far);
      picture.append(svg("g", { class: "server", "data-server": server },
        svg("circle", { cx: x, cy: -y, r: size, style: { fill: `var(--scale-${step})` } }),
        svg("text", { x, y: -y + size * 0.36, "text-anchor": "middle", "font-size": size * 1.05, class: step > 3 ? "on-much" : "on-little" }, String(server)),
        svg("title", {}, `server ${server}: ${value === undefined || value === null ? "not measured" : `${significant(value)} from the mean`}`)));
    });
    return picture;
  }

  servers(data, frame) {
    if (!frame.distances.length) return h("p", { class: "soft" }, "This log does not say how far apart the servers' models are.");
    const rows = frame.distances.map((value, server) => h("tr", {}, h("td", {}, `server ${server}`),
      data.clients && h("td", { class: "number" }, String(data.clients[server])),
      h("td", { class: "number" }, value === null ? "-" : significant(value))));
    return h("div", { class: "short" }, table("servers at this moment", ["server", data.clients && h("th", { scope: "col", class: "number" }, "clients"), h("th", { scope: "col", class: "number" }, "distance")].filter(Boolean), rows));
  }
}

function scale(title, most, text) {
  return h("div", { class: "scale" }, h("div", { class: "soft" }, title),
    h("div", { class: "steps", "aria-hidden": "true" }, [...Array(STOPS).keys()].map((step) => h("i", { style: { background: `var(--scale-${step})` } }))),
    h("div", { class: "ends soft" }, h("span", {}, "0"), h("span", {}, most ? text : "0")));
}

// The servers and their links at a moment of the run.

import { choice, h, svg, table, whenSeen } from "./dom.js";
import { duration, significant } from "./format.js";
import { consensus } from "./consensus.js";
import { seldom } from "./live.js";

const STOPS = 9;
const PULSE = 500; // milliseconds in which a dot travels along its link
const REST = 5000; // milliseconds between two such pictures of a live run: what moves is drawn 60 times a second
const LINKS = [
  { key: "traffic", title: "traffic", text: "exchanges since the previous moment" },
  { key: "age", title: "staleness", text: "time since the last exchange" },
];

const shade = (share) => Math.max(0, Math.min(STOPS - 1, Math.round(share * (STOPS - 1))));

export class Graph {
  constructor() {
    this.frame = null; // null: the newest
    this.peeked = null; // under another chart's cursor
    this.fresh = false; // a moment has just arrived
    this.pulsed = -REST; // when dots last travelled
    this.links = 0;
    this.later = null;
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
    if (data === this.data) return;
    const before = this.data?.frames?.at(-1)?.seconds;
    this.fresh ||= before !== undefined && this.frame === null && data.frames?.at(-1)?.seconds > before;
    this.data = data;
    if (data.why || !data.frames.length) {
      this.element.replaceChildren(h("p", { class: "soft" }, data.why ?? "Nothing has been measured yet."));
      return;
    }
    this.peeked = null;
    this.slider.max = data.frames.length - 1;
    if (this.frame === null) this.slider.value = data.frames.length - 1;
    this.later ??= seldom(whenSeen(this.element, () => this.draw()), 2000);
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
    if (this.timer || (this.fresh && performance.now() - this.pulsed >= REST)) this.pulse(data, frame);
    this.fresh = false;
    const guessed = data.sampled && kind.key === "traffic" ? " (estimated)" : "";
    this.side.replaceChildren(
      scale("distance from the mean model", far, significant(far)),
      scale(`links: ${kind.text}${guessed}`, busy, kind.key === "age" ? duration(busy) : significant(busy)),
      h("p", { class: "soft note" }, "The longer ago two servers last exchanged models, the fainter their link; while the run moves on, dots show exchanges."),
      consensus(data, index),
      this.servers(data, frame));
  }

  drawn(data, frame, kind, far, busy) {
    const [size, oldest] = [data.radius, this.most("age", frame)];
    const what = data.groups ? `${data.groups.flat().length} servers in ${data.groups.length} groups` : `${data.places.length} servers`;
    const picture = svg("svg", { viewBox: "-1.25 -1.25 2.5 2.5", role: "img", "aria-label": `Graph of ${what}; the table beside it has the numbers.` });
    data.links.forEach(([a, b], index) => {
      const [value, age] = [frame[kind.key][index], frame.age[index]];
      const step = value === null || !busy ? null : shade(value / busy);
      const words = value === null ? "no exchange yet" : kind.key === "age" ? `last exchange ${duration(value)} ago` : `${value} exchanges`;
      picture.append(svg("line", {
        x1: data.places[a][0], y1: -data.places[a][1], x2: data.places[b][0], y2: -data.places[b][1], class: value === null ? "never" : "edge",
        style: { stroke: step === null ? "var(--line)" : `var(--scale-${Math.max(1, step)})`, "stroke-width": step === null ? 0.012 : 0.014 + 0.03 * (step / STOPS), "stroke-opacity": age === null || !oldest ? 1 : 1 - 0.75 * (age / oldest) },
      }, svg("title", {}, `link ${name(data, a)} - ${name(data, b)}: ${words}`)));
    });
    data.places.forEach(([x, y], place) => {
      const value = frame.distances[place];
      const step = value === undefined || value === null || !far ? 0 : shade(value / far);
      const label = String(data.groups ? place + 1 : place);
      picture.append(svg("g", { class: "server", "data-server": place },
        svg("circle", { cx: x, cy: -y, r: size, style: { fill: `var(--scale-${step})` } }),
        svg("text", { x, y: -y + size * 0.36, "text-anchor": "middle", "font-size": size * 1.05, class: step > 3 ? "on-much" : "on-little" }, label),
        svg("title", {}, `${name(data, place)}: ${value === undefined || value === null ? "not measured" : `${data.groups ? "the farthest is " : ""}${significant(value)} from the mean`}`)));
    });
    return picture;
  }

  // Exchanges since the previous moment, as dots that travel along their links, once.
  pulse(data, frame) {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches || document.hidden) return;
    this.pulsed = performance.now();
    const picture = this.picture.firstElementChild;
    const most = Math.max(1, ...frame.traffic);
    data.links.forEach(([a, b], index) => {
      if (!frame.traffic[index]) return;
      for (const [from, to] of [[a, b], [b, a]]) {
        const dot = svg("circle", { class: "pulse", r: 0.018 + 0.022 * (frame.traffic[index] / most), cx: data.places[from][0], cy: -data.places[from][1] });
        picture.insertBefore(dot, picture.querySelector(".server"));
        const way = `translate(${data.places[to][0] - data.places[from][0]}px, ${data.places[from][1] - data.places[to][1]}px)`;
        dot.animate([{ transform: "none" }, { transform: way }], { duration: PULSE, easing: "ease-in-out" }).onfinish = () => dot.remove();
      }
    });
  }

  servers(data, frame) {
    if (!frame.distances.length) return h("p", { class: "soft" }, "This log does not say how far apart the servers' models are.");
    const number = (text) => h("th", { scope: "col", class: "number" }, text);
    if (data.groups) {
      const rows = frame.farthest.map(([server, value]) => h("tr", {}, h("td", {}, `server ${server}`), h("td", { class: "number" }, String(data.groups.findIndex((inside) => inside.includes(server)) + 1)), h("td", { class: "number" }, significant(value))));
      return h("div", {}, h("p", { class: "soft note" }, `Each circle is a group of servers near one another, with its number and in the colour of its farthest member. The ${rows.length} farthest servers of all:`),
        h("div", { class: "short" }, table("servers farthest from the mean at this moment", ["server", number("group"), number("distance")], rows)));
    }
    const rows = frame.distances.map((value, server) => h("tr", {}, h("td", {}, `server ${server}`),
      data.clients && h("td", { class: "number" }, String(data.clients[server])),
      h("td", { class: "number" }, value === null ? "-" : significant(value))));
    return h("div", { class: "short" }, table("servers at this moment", ["server", data.clients && number("clients"), number("distance")].filter(Boolean), rows));
  }
}

// What a circle stands for, in words.
function name(data, place) {
  if (!data.groups) return `server ${place}`;
  const inside = data.groups[place];
  const clients = data.clients ? `, ${data.clients[place]} clients` : "";
  return `group ${place + 1} (${inside.length} server${inside.length === 1 ? "" : "s"}: ${inside.slice(0, 6).join(", ")}${inside.length > 6 ? " …" : ""}${clients})`;
}

function scale(title, most, text) {
  return h("div", { class: "scale" }, h("div", { class: "soft" }, title),
    h("div", { class: "steps", "aria-hidden": "true" }, [...Array(STOPS).keys()].map((step) => h("i", { style: { background: `var(--scale-${step})` } }))),
    h("div", { class: "ends soft" }, h("span", {}, "0"), h("span", {}, most ? text : "0")));
}

// Who computes, waits, uploads and gossips when.

import { h, renew, svg, whenSeen } from "./dom.js";
import { holdupTable } from "./holdups.js";
import { duration, percent, unitFor } from "./format.js";
import { ask, oneAtATime, seldom } from "./live.js";
import { rounds } from "./scale.js";

const ROW = 13;
const TOP = 18;

export class Timeline {
  constructor(name) {
    this.name = name;
    this.begin = 0;
    this.width = null;
    this.end = 0; // of the run
    this.follow = false;
    this.chosen = "";
    this.holder = h("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "timeline" });
    this.readout = h("output", { class: "readout", "aria-live": "polite" });
    this.slider = h("input", { type: "range", min: 0, max: 1000, value: 0, class: "grow", "aria-label": "Beginning of the window" });
    this.slider.addEventListener("input", () => { this.follow = false; this.begin = (this.slider.value / 1000) * Math.max(0, this.end - this.width); this.fetch(); });
    this.servers = h("select", { "aria-label": "Servers shown" });
    this.servers.addEventListener("change", () => { this.chosen = this.servers.value; this.fetch(); });
    const zoom = (factor, text, label) => h("button", { type: "button", "aria-label": label, onclick: () => this.zoom(factor) }, text);
    this.legend = h("ul", { class: "legend" });
    this.holdups = h("div", {});
    this.element = h("div", {}, this.legend, this.holder, this.readout,
      h("div", { class: "bar player" }, zoom(0.5, "+", "Zoom in"), zoom(2, "−", "Zoom out"), this.slider, this.servers), this.holdups);
    this.fetch = oneAtATime(() => this.load());
    this.later = seldom(whenSeen(this.element, () => this.fetch()), 2000); // a window that follows a run need not hurry
    new ResizeObserver(() => this.data && this.draw()).observe(this.holder);
  }

  // `end` is when the run's last round ended, `pace` about how long a round takes
  update(end, pace, live) {
    if (!end) return;
    this.end = end;
    if (this.width === null) { this.width = Math.min(end, 6 * pace || end); this.follow = live; }
    if (this.follow) this.begin = Math.max(0, end - this.width);
    this.place();
    if (!this.data) this.fetch();
    else if (this.follow || this.begin + this.width > end - 1e-9) this.later();
  }

  place() {
    const room = this.end - this.width;
    this.slider.value = room > 0 ? Math.round((1000 * this.begin) / room) : 0;
    this.slider.setAttribute("aria-valuetext", `from ${duration(this.begin)} to ${duration(this.begin + this.width)}`);
  }

  zoom(factor) {
    const middle = this.begin + this.width / 2;
    this.width = Math.max(this.end / 5000, Math.min(this.end, this.width * factor));
    this.begin = Math.max(0, Math.min(this.end - this.width, middle - this.width / 2));
    this.place();
    this.fetch();
  }

  async load() {
    const query = { name: this.name, begin: this.begin, end: this.begin + this.width };
    if (this.chosen !== "") query.server = this.chosen;
    try {
      this.data = await ask("/api/timeline", query);
    } catch (error) {
      this.data = { why: error.message };
    }
    this.draw();
  }

  draw() {
    const data = this.data;
    if (data.why) { this.holder.replaceChildren(h("p", { class: "soft" }, data.why)); return; }
    if (this.servers.childElementCount !== data.servers + 1) {
      this.servers.replaceChildren(h("option", { value: "" }, "servers that fit"), ...[...Array(data.servers).keys()].map((server) => h("option", { value: server }, `server ${server}`)));
    }
    this.legend.replaceChildren(...Object.entries(data.kinds).map(([kind, words]) => h("li", {}, h("i", { class: "swatch", style: { background: `var(--span-${kind})` } }), words)),
      ...(Object.keys(data.away).length ? [h("li", {}, h("i", { class: "swatch away" }), `away${data.away.cloud ? " (a band through all rows: the cloud)" : ""}`)] : []));
    const width = Math.max(300, this.holder.clientWidth - 4);
    const height = TOP + data.rows.length * ROW + data.rows.filter((row) => row.who.startsWith("server")).length * 6 + 8;
    const LEFT = 14 + 6.8 * Math.max(6, ...data.rows.map((row) => row.who.length)); // for the names
    const x = (moment) => LEFT + ((moment - data.begin) / (data.end - data.begin)) * (width - LEFT - 12);
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": this.spoken() });
    let y = TOP;
    const band = (who, top, high) => (data.away[who] ?? []).forEach(([begin, end]) => picture.append(svg("rect", {
      x: x(begin), y: top, width: Math.max(1, x(end) - x(begin)), height: high, class: "away",
      onpointerenter: () => { this.readout.textContent = `${who}: away from ${duration(begin)} to ${duration(end)}, as far as this window shows`; },
    })));
    data.rows.forEach((row) => {
      const server = row.who.startsWith("server");
      if (server) y += 6;
      picture.append(svg("text", { x: LEFT - 6, y: y + 10, "text-anchor": "end", class: server ? "who strong" : "who" }, row.who));
      row.spans.forEach(([kind, begin, end, round]) => picture.append(svg("rect", {
        x: x(begin), y: y + (server ? 0.5 : 2), width: Math.max(0.4, x(end) - x(begin)), height: server ? ROW - 1 : ROW - 4, style: { fill: `var(--span-${kind})` },
        onpointerenter: () => { this.readout.textContent = `${row.who}: ${data.kinds[kind]}, ${duration(end - begin)} (from ${duration(begin)}), round ${round}`; },
      })));
      band(row.who, y, ROW);
      y += ROW;
    });
    band("cloud", TOP, y - TOP);
    const unit = unitFor(data.end, data.units);
    rounds(data.begin / unit.size, data.end / unit.size, (width - LEFT) / 110).forEach((tick, index) => {
      const at = x(tick * unit.size);
      picture.append(svg("line", { x1: at, x2: at, y1: TOP - 3, y2: TOP + 3, class: "tick" }),
        svg("text", { x: at, y: 12, "text-anchor": at > width - 40 ? "end" : "middle", class: "who" }, `${tick}${index ? "" : ` ${unit.name}`}`));
    });
    this.line = svg("line", { y1: 0, y2: height, class: "cursor" });
    this.x = x;
    picture.append(this.line);
    this.holder.replaceChildren(picture);
    this.mark(this.moment ?? null);
    const left = data.left_out ? ` ${data.left_out} more ${data.left_out === 1 ? "server does" : "servers do"} not fit here: choose one below.` : "";
    this.readout.textContent = this.spoken() + left;
    renew(this.holdups, data.holdups, holdupTable);
  }

  // The moment under another chart's cursor.
  mark(moment) {
    this.moment = moment;
    if (!this.line) return;
    const there = moment !== null && moment >= this.data.begin && moment <= this.data.end;
    this.line.style.setProperty("display", there ? "inline" : "none");
    if (there) { this.line.setAttribute("x1", this.x(moment)); this.line.setAttribute("x2", this.x(moment)); }
  }

  spoken() {
    const waiting = Object.entries(this.data.waiting).filter(([, share]) => share !== null).map(([who, share]) => `${who} wait ${percent(share)} of the time`);
    return `${duration(this.data.begin)} to ${duration(this.data.end)}: ${waiting.join(", ")}.`;
  }
}

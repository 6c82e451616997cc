// What if: sliders for periods and links, and what the planner predicts, next to the run.

import { h, link, table, whenSeen } from "./dom.js";
import { ask, latest } from "./live.js";

const PAUSE = 150; // milliseconds that a slider rests before its question is asked

export class WhatIf {
  constructor(name, about) {
    this.name = name;
    this.about = about;
    this.sliders = new Map(); // by key
    this.grid = h("div", { class: "knobs" });
    this.result = h("div", {}, h("p", { class: "soft" }, "The planner is looking at this run …"));
    this.said = h("p", { class: "visually-hidden", role: "status" });
    this.notes = h("div", {});
    this.start = h("a", { class: "button primary" }, "Start this");
    this.back = h("button", { type: "button", onclick: () => this.reset() }, "Back to the run's settings");
    this.bar = h("div", { class: "bar", hidden: true }, about.allow_start && this.start, this.back);
    this.element = h("div", { class: "whatif" }, this.grid, this.result, this.said, this.bar, this.notes);
    this.inquire = latest(() => ask("/api/forecast", { name, ...this.changes() }), (found, error) => this.answered(found, error), PAUSE);
    this.once = whenSeen(this.element, () => { if (!this.begun) { this.begun = true; this.inquire(); } });
  }

  // The run is there: predict as soon as somebody looks.
  ready() { this.once(); }

  // What differs from the run.
  changes() {
    return Object.fromEntries([...this.sliders].filter(([, { knob, input }]) => knob.choices[input.value] !== knob.value).map(([key, { knob, input }]) => [key, knob.choices[input.value]]));
  }

  reset() {
    for (const slider of this.sliders.values()) { slider.input.value = String(slider.knob.choices.indexOf(slider.knob.value)); slider.tell(); }
    this.inquire();
  }

  answered(found, error) {
    if (error) {
      this.result.replaceChildren(h("p", { class: "soft" }, `No prediction: ${error.message}.`));
      return;
    }
    if (!this.sliders.size) this.grid.replaceChildren(...found.knobs.map((knob) => this.slider(knob)));
    const changes = this.changes();
    const changed = Object.keys(changes).length > 0;
    const head = ["costs", ...["this run", "predicted for it", ...(changed ? ["with your settings", "change"] : [])].map((text) => h("th", { scope: "col", class: "number" }, text))];
    this.result.replaceChildren(table("what the planner predicts", head, found.rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row.name),
      row.cells.slice(0, changed ? 3 : 2).map((cell, index) => h("td", { class: index === 2 ? "number strong" : "number" }, cell)),
      changed && h("td", { class: "number" }, difference(row.ratio))))));
    this.result.classList.toggle("changed", changed);
    this.said.textContent = changed ? `Predicted with your settings: ${found.rows.map((row) => `${row.name} ${row.cells[2]}`).join("; ")}.` : "";
    this.notes.replaceChildren(...found.notes.map((text) => h("p", { class: "soft note" }, text)));
    this.bar.hidden = !changed;
    const query = new URLSearchParams([["from", this.name], ...Object.entries(changes).map(([key, value]) => ["set", `${key}=${value}`])]);
    this.start.setAttribute("href", link("/new", query));
  }

  slider(knob) {
    const id = `knob-${knob.key}`;
    const input = h("input", { id, type: "range", min: 0, max: knob.choices.length - 1, step: 1 });
    const output = h("output", { for: id });
    const tell = () => {
      const value = knob.choices[input.value];
      const text = `${value}${knob.unit && ` ${knob.unit}`}`;
      input.setAttribute("aria-valuetext", text);
      output.textContent = text;
      output.classList.toggle("strong", value !== knob.value);
    };
    input.value = String(knob.choices.indexOf(knob.value));
    tell();
    input.addEventListener("input", () => { tell(); this.inquire(); });
    this.sliders.set(knob.key, { knob, input, tell });
    return h("div", { class: "knob" }, h("label", { for: id, title: knob.key }, knob.label), output, input);
  }
}

function difference(ratio) {
  if (ratio === null) return "-";
  const percent = Math.round(100 * (ratio - 1));
  if (ratio >= 3) return `${+ratio.toPrecision(2)} times`;
  return percent === 0 ? "none" : `${percent > 0 ? "+" : "−"}${Math.abs(percent)} %`;
}

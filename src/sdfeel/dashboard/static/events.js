// The events as a table, newest first.

import { h, table } from "./dom.js";
import { ask, latest } from "./live.js";

const KINDS = ["", "started", "round", "evaluated", "warned", "finished"];

export class EventTable {
  constructor(name) {
    this.kind = "";
    this.older = false; // does the user look at older events? New ones must not push them away
    this.select = h("select", { "aria-label": "Kind of event" }, KINDS.map((kind) => h("option", { value: kind }, kind || "all kinds")));
    this.select.addEventListener("change", () => { this.kind = this.select.value; this.load(null); });
    this.wanted = null; // show the events before this place; null: the newest
    this.ask = latest(
      () => ask("/api/events", { name, ...(this.wanted !== null && { before: this.wanted }), ...(this.kind && { kind: this.kind }) }),
      (page, error) => this.shown(page, error));
    this.holder = h("div", {});
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.load(this.before) }, "Older");
    this.newest = h("button", { type: "button", hidden: true, onclick: () => this.load(null) }, "Newest");
    this.element = h("div", {}, h("div", { class: "bar" }, this.select), this.holder, h("div", { class: "bar" }, this.more, this.newest));
  }

  // New events, unless somebody is reading: then a button says that there are some.
  refresh() {
    const box = this.holder.firstElementChild;
    const reading = this.older || (box && (box.scrollTop > 0 || box.contains(document.activeElement)));
    if (!reading) this.load(null);
    else { this.newest.hidden = false; this.newest.textContent = "Show newer events"; }
  }

  load(before) {
    this.older = before !== null;
    this.wanted = before;
    this.ask();
  }

  shown(page, error) {
    if (error) { this.holder.replaceChildren(h("p", { class: "soft" }, error.message)); return; }
    this.before = page.before;
    this.more.hidden = page.before === null;
    this.newest.hidden = !this.older;
    this.newest.textContent = "Newest";
    const rows = page.rows.map((row) => h("tr", {}, h("td", {}, h("span", { class: "pill", "data-state": row.kind }, row.kind)), h("td", { class: "number" }, row.seconds ?? ""), h("td", { class: "fields" }, Object.entries(row.fields).map(([key, value]) => h("span", {}, h("b", {}, key), ` ${shown(value)} `)))));
    const box = table("events", ["event", h("th", { scope: "col", class: "number" }, "time"), "content"], rows);
    box.classList.add("tall");
    this.holder.replaceChildren(page.rows.length ? box : h("p", { class: "soft" }, "No such event."));
  }
}

function shown(value) {
  if (typeof value === "string") return value;
  if (typeof value === "number") return String(+value.toPrecision(6));
  if (Array.isArray(value)) return `[${value.map(shown).join(", ")}]`;
  if (value && typeof value === "object") return Object.entries(value).map(([key, part]) => `${key} ${shown(part)}`).join(", ");
  return String(value);
}

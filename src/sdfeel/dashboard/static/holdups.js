// For whom rounds waited in the window of the timeline, the costliest first.

import { h, table } from "./dom.js";
import { count, duration, percent } from "./format.js";

/** @param {{rows: {who: string, rounds: number, seconds: number, computing: number, sending: number, share: number}[], rounds: number}} found */
export function holdupTable({ rows, rounds }) {
  if (!rows.length) return [];
  const right = (/** @type {string} */ text) => h("th", { scope: "col", class: "number" }, text);
  const lines = rows.map((row) => h("tr", {}, h("td", { class: "strong" }, row.who), h("td", { class: "number" }, `${count(row.rounds)} of ${count(rounds)}`), h("td", { class: "number" }, row.computing ? duration(row.computing) : "-"), h("td", { class: "number" }, duration(row.sending)), h("td", { class: "number strong" }, `${duration(row.seconds)} (${percent(row.share)})`)));
  return [h("h3", {}, "What rounds waited for in this window"), h("div", { class: "short" }, table("what rounds waited for", ["waited for", right("rounds"), right("computing"), right("sending"), right("saved without it")], lines)),
    h("p", { class: "soft note" }, "The last to arrive, and how much sooner these rounds would have ended without it, with the same prices for all others.")];
}

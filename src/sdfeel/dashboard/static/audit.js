// Who called a deployment's nodes, and who was turned away; loaded when somebody opens it.

import { choice, h, table } from "./dom.js";
import { count } from "./format.js";
import { ask } from "./live.js";

/** @param {string} name of the run */
export function auditCard(name) {
  const holder = h("div", {});
  const element = h("details", { class: "card audit" }, h("summary", {}, "Audit log"));
  let all = false;
  const load = async () => {
    try {
      holder.replaceChildren(...drawn(await ask("/api/audit", { name, ...(all && { all: "yes" }) })));
    } catch (error) { holder.replaceChildren(h("p", { class: "soft" }, /** @type {Error} */ (error).message)); }
  };
  element.append(h("div", { class: "bar" }, choice("Calls", ["turned away", "all calls"], 0, (/** @type {number} */ index) => { all = index === 1; load(); }), h("button", { type: "button", onclick: load }, "Read again")), holder);
  element.addEventListener("toggle", () => { if (element.open) load(); });
  return element;
}

/** @param {{rows: any[], outcomes: Record<string, number>, cut: boolean}} found */
function drawn({ rows, outcomes, cut }) {
  const sums = Object.entries(outcomes).map(([outcome, calls]) => `${outcome} ${count(calls)}`).join(", ");
  const lines = rows.map((row) => h("tr", {}, h("td", {}, row.time.slice(0, 19).replace("T", " ")), h("td", { class: "strong" }, row.node), h("td", {}, row.who), h("td", {}, row.call), h("td", {}, row.outcome), h("td", { class: "number" }, count(row.calls)), h("td", {}, row.address), h("td", { class: "wrap" }, row.reason)));
  const box = table("audit log", ["time (UTC)", "node", "caller", "call", "outcome", h("th", { scope: "col", class: "number" }, "calls"), "address", "reason"], lines);
  box.classList.add("tall");
  return [h("p", { class: "soft note" }, `${cut ? "At the ends of the logs: " : ""}${sums || "no calls"}. \`sdfeel deploy audit\` checks that nothing was changed.`), rows.length ? box : h("p", {}, "Nobody was turned away.")];
}

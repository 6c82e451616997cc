// The nodes of a deployment.

import { h, table } from "./dom.js";
import { ago, count, number } from "./format.js";

const HEAD = ["node", "role", "health", "round", "lag", "data moved", "last heard", "turned away", "certificate", "last error"];
const SOON = 14; // days before it expires, a certificate is pointed out

export function nodeTable(nodes) {
  if (!nodes?.length) return [];
  const bad = nodes.filter((node) => !["running", "finished", "ended"].includes(node.state)).length;
  const rows = nodes.map((node) => h("tr", { "data-node": node.name },
    h("td", { class: "strong" }, node.name), h("td", {}, node.role ?? "-"),
    h("td", {}, h("span", { class: "pill", "data-state": node.state }, node.state)),
    h("td", { class: "number" }, String(node.round ?? "-")), h("td", { class: "number" }, node.lag === null || node.lag === undefined ? "-" : number(node.lag)),
    h("td", { class: "number" }, node.bytes ?? "-"), h("td", { class: "number" }, node.heard ? ago(node.heard) : "-"),
    h("td", { class: "number" }, node.turned_away === undefined ? "-" : count(node.turned_away)), expiry(node.certificate_expires),
    h("td", { class: "wrap problem-text" }, node.last_error ?? "")));
  const box = table("nodes", HEAD.map((title, index) => h("th", { scope: "col", class: index > 2 && index < 8 ? "number" : "" }, title)), rows);
  box.classList.add("tall");
  return [h("section", { class: "card" }, h("h2", {}, "Federation"),
    h("p", { class: "soft" }, `${nodes.length} node${nodes.length === 1 ? "" : "s"}, ${bad ? `${bad} of them not well` : "all well"}`), box)];
}

// How long a node's certificate is still good.
function expiry(seconds) {
  if (seconds === null || seconds === undefined) return h("td", {}, "-");
  const days = (seconds - Date.now() / 1000) / 86400;
  const until = new Date(seconds * 1000).toISOString().slice(0, 10);
  return h("td", { class: days < SOON ? "problem-text" : "", title: `until ${until}` }, days < 0 ? `expired ${until}` : days < SOON ? `${Math.floor(days)} days left` : `until ${until}`);
}

// What `sdfeel deploy verify` found.
export function verified(found) {
  if (!found) return [];
  const rounds = `${found.whole_rounds} of ${found.rounds} rounds were recomputed completely`;
  const offenders = found.offenders.length ? [h("p", { class: "problem-text" }, `Deviated: ${found.offenders.join(", ")}`)] : [];
  return [h("section", { class: found.verified ? "card" : "card warnings", "data-verified": String(found.verified) },
    h("h2", {}, "Verification"), h("p", { class: "strong" }, found.verdict), h("p", { class: "soft" }, rounds), ...offenders,
    h("ul", {}, ...found.findings.map((each) => h("li", {}, each.text))))];
}

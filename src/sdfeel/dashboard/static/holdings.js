// Which classes each server's clients hold together, and each client alone.

import { h, svg } from "./dom.js";
import { ask } from "./live.js";
import { count } from "./format.js";

const STOPS = 9;

export async function holdings(name) {
  let data;
  try {
    data = await ask("/api/holdings", { name });
  } catch (error) {
    return h("p", { class: "soft" }, `This cannot be shown: ${error.message}`);
  }
  const clients = data.clients.map((each) => ({ title: `client ${each.client} (server ${each.server})`, group: each.server, counts: each.counts }));
  const servers = data.servers.map((counts, server) => ({ title: `server ${server}`, group: server, counts, label: server }));
  return h("div", {},
    h("div", { class: "halves wide-left" },
      h("div", {}, h("h3", {}, "clients, by server"), heat(clients), data.left_out ? h("p", { class: "soft note" }, `${count(data.left_out)} more clients are not drawn.`) : null),
      h("div", {}, h("h3", {}, "all clients of a server"), heat(servers))),
    h("div", { class: "ends soft" }, h("span", {}, "Each column's shades show shares of its own examples; each row is a class."),
      h("div", { class: "shares", role: "img", "aria-label": "Darker shades mean larger shares, from none to all." },
        [...Array(STOPS).keys()].map((step) => h("span", {}, h("i", { style: { background: `var(--scale-${step})` } }), step % 2 ? "" : `${Math.round(100 * shareAt(step))}`)), h("span", { class: "unit" }, "%"))));
}

// Small shares are told apart better if shades follow their roots; the legend says which is which.
const shadeOf = (share) => Math.round(Math.sqrt(share) * (STOPS - 1));
const shareAt = (shade) => (shade / (STOPS - 1)) ** 2;

function heat(columns) {
  const classes = columns[0]?.counts.length ?? 0;
  const [left, cell, top] = [20, 14, 4];
  const width = Math.max(4, Math.min(26, 560 / Math.max(1, columns.length)));
  const gaps = columns.map((column, index) => (index && column.group !== columns[index - 1].group && column.label === undefined ? 1 : 0));
  let x = left;
  const picture = svg("svg", { class: "heat", role: "img", "aria-label": `${columns.length} columns, ${classes} classes` });
  for (let label = 0; label < classes; label += Math.ceil(classes / 10)) {
    picture.append(svg("text", { x: left - 5, y: top + label * cell + 11, "text-anchor": "end", class: "who" }, String(label)));
  }
  let group = null;
  columns.forEach((column, index) => {
    x += gaps[index] * Math.min(3, width / 2);
    const total = column.counts.reduce((sum, each) => sum + each, 0) || 1;
    const box = svg("g", {}, svg("title", {}, `${column.title}: ${count(total)} examples; ${column.counts.map((each, label) => (each ? `class ${label}: ${each}` : null)).filter(Boolean).join(", ")}`));
    column.counts.forEach((each, label) => {
      const share = each / total;
      box.append(svg("rect", { x, y: top + label * cell, width: width - (width > 6 ? 1 : 0), height: cell - 1, style: { fill: each ? `var(--scale-${shadeOf(share)})` : "var(--nothing)" } }));
    });
    if (column.group !== group) picture.append(svg("text", { x, y: top + classes * cell + 12, class: "who" }, String(column.group)));
    group = column.group;
    picture.append(box);
    x += width;
  });
  picture.setAttribute("viewBox", `0 0 ${x + 2} ${top + classes * cell + 18}`);
  picture.style.setProperty("max-width", `${Math.max(180, (x + 2) * 1.5)}px`);
  return picture;
}

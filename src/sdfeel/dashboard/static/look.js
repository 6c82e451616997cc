// The look of a line: its colour and dash are a number that comes from the server, the same everywhere.

import { h, svg } from "./dom.js";

const COLOURS = 9; // as in palette.css
const DASHES = [[], [6, 2], [6, 2, 1.5, 2], [1.5, 1.5], [11, 3], [6, 2, 1.5, 2, 1.5, 2], [1.5, 4], [8, 2, 3, 2]]; // as in palette.css
const WIDTH = 1.5;

export const colour = (style, bare = false) => (bare ? `--line-${style % COLOURS}` : `var(--line-${style % COLOURS})`);
export const dash = (style) => DASHES[style % DASHES.length].map((length) => length * WIDTH);

// A picture to save: large for a screen, or with text of 7 to 9 points for a page of a paper.
export const PICTURES = { PNG: "as=png", SVG: "as=svg&width=page", PDF: "as=pdf&width=page" };

// A short piece of a line.
export function sample(style, width = 34) {
  const look = style === null ? { class: "target" } : { class: `curve dash-${style % DASHES.length}`, style: { stroke: colour(style) } };
  return svg("svg", { width, height: 12, "aria-hidden": "true", class: "sample" }, svg("path", { d: `M1 6h${width - 2}`, ...look }));
}

// Buttons that switch lines off and on; pointing at one picks its line out, a double click shows it alone.
export function legend(lines, target, text, { hidden, turn, only, pick }) {
  const items = lines.map((line) => h("li", {}, h("button", {
    type: "button", class: "plain", "aria-pressed": String(!hidden.has(line.label)), title: "Click: hide or show this line. Double click: show only this line.",
    onclick: () => turn(line.label), ondblclick: () => only(line.label),
    onpointerenter: () => pick(line.label), onpointerleave: () => pick(null), onfocus: () => pick(line.label), onblur: () => pick(null),
  }, sample(line.style), h("span", {}, line.label))));
  if (target !== null && target !== undefined) items.push(h("li", { class: "goal" }, sample(null), h("span", {}, text)));
  return h("ul", { class: "legend", "aria-label": "legend" }, items);
}

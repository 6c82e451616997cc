// The columns of the list: the usual ones, and others that somebody has added.

import { h } from "./dom.js";
import { ago, amount, count, duration, percent, significant } from "./format.js";

/** @typedef {{key: string, title: string, number?: boolean, wide?: boolean}} Column */

/** @type {Column[]} */
export const USUAL = [
  { key: "name", title: "run" },
  { key: "scheme", title: "scheme" },
  { key: "state", title: "state" },
  { key: "accuracy", title: "accuracy", number: true },
  { key: "seconds", title: "time", number: true },
  { key: "iterations", title: "iterations", number: true, wide: true },
  { key: "bytes", title: "data moved", number: true, wide: true },
  { key: "seed", title: "seed", number: true, wide: true },
  { key: "kind", title: "kind", wide: true },
  { key: "modified", title: "changed", number: true },
];
const WORDS = new Set(["scheme", "state", "kind", "tags", "note", "folder", "reason", "name"]);

/** @param {string} key @returns {Column} */
export const added = (key) => ({ key, title: key === "joules" ? "modelled joules" : key, number: !WORDS.has(key), wide: true });

/** A value as the list prints it.
 * @param {string} key
 * @param {any} value
 */
export function shown(key, value) {
  if (value === null || value === undefined || value === "") return "-";
  if (key === "accuracy") return percent(value);
  if (key === "seconds") return duration(value);
  if (key === "bytes") return amount(value);
  if (key === "joules") return `${significant(value)} J`;
  if (key === "modified") return value ? ago(value) : "-";
  if (typeof value === "number") return Number.isInteger(value) && Math.abs(value) < 1e15 ? count(value) : significant(value);
  return String(value);
}

/** A box to add and remove columns.
 * @param {{extra: () => string[], add: (key: string) => void, remove: (key: string) => void, names: () => Promise<string[]>}} told
 */
export function chooser({ extra, add, remove, names }) {
  const list = h("datalist", { id: "keys" });
  const input = h("input", { list: "keys", placeholder: "a key or a metric", "aria-label": "Add a column", class: "key" });
  const chips = h("span", { class: "chips" });
  const draw = () => chips.replaceChildren(...extra().map((key) => h("button", { type: "button", class: "chip", "aria-label": `Remove the column ${key}`, onclick: () => remove(key) }, `${key} ✕`)));
  const fill = async () => list.replaceChildren(...(await names()).map((name) => h("option", { value: name })));
  input.addEventListener("focus", fill, { once: true });
  input.addEventListener("change", () => { if (input.value.trim()) add(input.value.trim()); input.value = ""; });
  return { element: h("span", { class: "bar columns" }, h("label", { class: "soft" }, "columns ", input), list, chips), draw, fill };
}

// A table for a spreadsheet; a text that begins like a formula gets a quote before it.

import { h } from "./dom.js";

/** @param {any} value */
function cell(value) {
  const text = value === null || value === undefined ? "" : String(value);
  const safe = typeof value === "string" && /^[=+\-@\t]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** @param {string} name @param {any[][]} lines */
export function saveCsv(name, lines) {
  const text = lines.map((line) => line.map(cell).join(",")).join("\r\n");
  const address = URL.createObjectURL(new Blob([`${text}\r\n`], { type: "text/csv" }));
  h("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}

// Comparisons, sweeps, figures and plans: directories whose content belongs together.

import { h } from "./dom.js";
import { ago, count } from "./format.js";
import { planLinks } from "./jobs.js";

const SOME = 8; // shown until somebody asks for all

/**
 * @param {{name: string, plan: boolean, title: string, modified: number}[]} groups
 * @param {Iterable<{folder: string, name: string}>} runs
 * @param {{only: (folder: string) => void, allow: boolean}} told
 */
export function folderList(groups, runs, { only, allow }) {
  if (!groups.length) return [];
  const sizes = new Map();
  for (const run of runs) {
    if (!sizes.has(run.folder)) sizes.set(run.folder, []);
    sizes.get(run.folder).push(run.name);
  }
  const items = groups.map((group) => {
    const names = sizes.get(group.name) ?? [];
    const query = new URLSearchParams(names.slice(0, 60).map((/** @type {string} */ name) => ["run", name]));
    return h("li", { "data-folder": group.name }, h("span", { class: "pill" }, group.title.replace(/^An? /, "")), h("span", { class: "strong" }, group.name),
      group.plan ? planLinks(group.name, allow) : [
        h("button", { type: "button", class: "plain", onclick: () => only(group.name) }, `${count(names.length)} runs`),
        names.length > 1 && names.length <= 60 && h("a", { href: `/compare?${query}&seeds=mean` }, "compare")],
      h("span", { class: "soft" }, ago(group.modified)));
  });
  const rest = h("details", {}, h("summary", { class: "soft" }, `${items.length - SOME} more`), h("ul", {}, items.slice(SOME)));
  return [h("section", { class: "card folders" }, h("h2", {}, "Made together"), h("ul", {}, items.slice(0, SOME)), items.length > SOME && rest)];
}

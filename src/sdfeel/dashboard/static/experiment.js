// The experiment with its help texts; what is not the default stands out.

import { h } from "./dom.js";
import { ask } from "./live.js";

export async function experiment(name) {
  let data;
  try {
    data = await ask("/api/experiment", { name });
  } catch (error) {
    return h("p", { class: "soft" }, error.message);
  }
  return h("div", {}, h("p", { class: "soft note" }, "Bold: not the default."),
    h("div", { class: "sections" }, data.sections.map((section) => h("div", {}, h("h3", {}, section.name || "run"),
      h("dl", { class: "keys" }, section.keys.map((each) => h("div", { title: each.help, class: each.changed ? "changed" : "" }, h("dt", {}, each.key), h("dd", {}, text(each.value)))))))));
}

export const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));

// Tags and a note of a run; they can be changed where the page may change something.

import { h } from "./dom.js";
import { tell } from "./live.js";

/** @param {string[]} tags */
export const tagList = (tags) => tags.map((tag) => h("span", { class: "tag" }, tag));

/** @param {string} name @param {{allow_start: boolean, secret: string}} about */
export function notes(name, about) {
  const said = h("p", { class: "note-text" });
  const tags = h("span", { class: "chips" });
  const element = h("div", { class: "notes" }, tags, said);
  /** @type {{tags: string[], note: string}} */ let now = { tags: [], note: "" };
  const draw = () => { tags.replaceChildren(...tagList(now.tags)); said.textContent = now.note; };
  if (about.allow_start) {
    const words = h("input", { "aria-label": "Tags, with commas between them", placeholder: "tags, with commas between them" });
    const text = h("textarea", { rows: 3, "aria-label": "Note", placeholder: "what is worth knowing about this run", maxlength: 4000 });
    const problem = h("span", { class: "problem-text", role: "alert" });
    const form = h("div", { class: "note-form", hidden: true }, words, text, h("div", { class: "bar" },
      h("button", { type: "button", class: "primary", onclick: async () => {
        try {
          now = await tell("/api/notes", { name, tags: words.value.split(","), note: text.value }, about.secret);
          form.hidden = true;
          problem.textContent = "";
          draw();
        } catch (error) { problem.textContent = /** @type {Error} */ (error).message; }
      } }, "Save"), h("button", { type: "button", onclick: () => { form.hidden = true; } }, "Cancel"), problem));
    const open = h("button", { type: "button", class: "plain edit-notes", onclick: () => { words.value = now.tags.join(", "); text.value = now.note; form.hidden = false; words.focus(); } }, "✎ tags and note");
    element.append(open, form);
  }
  return { element, update: (/** @type {{tags: string[], note: string}} */ run) => { now = { tags: run.tags ?? [], note: run.note ?? "" }; draw(); } };
}

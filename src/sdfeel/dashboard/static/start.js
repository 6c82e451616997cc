// A new run, from a form that the experiment's own classes describe.

import { card, choice, h, link } from "./dom.js";
import { ask, tell } from "./live.js";
import { text } from "./experiment.js";

export async function show(main, about, query) {
  document.title = "new run · sdfeel";
  document.getElementById("crumbs").replaceChildren(h("a", { href: "/" }, about.directory), h("span", { class: "soft" }, "/"), h("span", {}, "new run"));
  if (!about.allow_start) throw new Error("Runs can be started here only if `sdfeel dash` was started with --allow-start.");
  const form = await ask("/api/form");
  const changes = query.getAll("set").map((each) => each.split(/=(.*)/s).slice(0, 2)); // to the other run's settings
  const given = { ...await before(query.get("from"), query.get("planned") ?? ""), ...Object.fromEntries(changes) };
  const inputs = new Map();
  const scheme = h("div", { class: "fields-grid" });
  const problem = h("p", { class: "problem-text", role: "alert" });
  const name = h("input", { name: "name", required: true, pattern: "[A-Za-z0-9_=+][A-Za-z0-9._=+\\-]{0,99}", value: suggestion(query.get("from"), changes), "aria-describedby": "help-name" });

  const fieldsOf = (fields) => fields.map((field) => {
    const input = control(field, given[field.path]);
    inputs.set(field.path, { field, input });
    const id = `field-${field.path}`;
    input.id = id;
    input.setAttribute("aria-describedby", `help-${field.path}`);
    return h("div", { class: "field" }, h("label", { for: id }, field.key), input, h("p", { id: `help-${field.path}`, class: "soft note" }, field.help), suggestions(field));
  });
  const drawScheme = (chosen) => {
    for (const path of [...inputs.keys()]) if (path.startsWith("scheme.") && path !== "scheme.name") inputs.delete(path);
    const known = form.schemes[chosen];
    scheme.replaceChildren(h("p", { class: "soft wide-field" }, known.help), ...fieldsOf(known.fields));
  };
  const sections = form.sections.map((section) => {
    const fields = fieldsOf(section.fields);
    const body = section.name === "scheme" ? [h("div", { class: "fields-grid" }, fields), scheme] : [h("div", { class: "fields-grid" }, fields)];
    const open = ["", "scheme", "network", "training"].includes(section.name) || section.fields.some((field) => field.path in given && text(given[field.path]) !== text(field.default));
    return h("details", { class: "card", open }, h("summary", {}, section.name || "run", " ", h("span", { class: "soft" }, section.help)), body);
  });
  const named = inputs.get("scheme.name").input;
  named.addEventListener("change", () => drawScheme(named.value));
  drawScheme(named.value);

  const goal = goalFields(form);
  const what = choice("What to start", ["a run", "a plan"], 0, (index) => { goal.hidden = index === 0; });
  const button = h("button", { type: "submit", class: "button primary" }, "Start");
  const element = h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      problem.textContent = "";
      button.disabled = true;
      try {
        const settings = [...inputs].flatMap(([path, { field, input }]) => setting(path, field, input));
        const wish = goal.hidden ? { what: "run" } : { what: "plan", goal: wanted(goal) };
        await tell("/api/start", { ...wish, name: name.value, settings }, about.secret);
        location.href = "/";
      } catch (error) {
        problem.textContent = error.message;
        button.disabled = false;
      }
    },
  }, card(null, h("div", { class: "bar" }, what), goal, h("div", { class: "field" }, h("label", {}, "name ", name), h("p", { id: "help-name", class: "soft note" }, "of the run's directory"))), sections,
  h("div", { class: "basket" }, button, h("a", { class: "button", href: query.get("from") ? link("/run", { name: query.get("from") }) : "/" }, "Cancel"), problem));
  main.replaceChildren(h("div", { class: "title" }, h("h1", {}, "New run"), h("p", { class: "soft" }, "Fields that you leave alone keep their defaults.")), element);
}

// A plan looks for the best scheme and periods; its goal is not part of the experiment.
function goalFields(form) {
  const field = (name, label, help, more) => h("div", { class: "field" }, h("label", { for: `goal-${name}` }, label), h("input", { id: `goal-${name}`, "data-goal": name, "aria-describedby": `help-goal-${name}`, ...more }), h("p", { id: `help-goal-${name}`, class: "soft note" }, help));
  const number = { type: "number", min: 0, step: "any" };
  return h("div", { class: "fields-grid", hidden: true },
    h("p", { class: "soft wide-field" }, "A plan tries schemes, periods and learning rates for these links and devices. Give at most one of the first three."),
    field("target-accuracy", "target accuracy", "reach this test accuracy, 0 to 1, soonest", { ...number, max: 1 }),
    field("target-loss", "target loss", "reach this training loss soonest", number),
    field("budget", "budget", "the best model within this virtual time, in seconds", number),
    field("schemes", "schemes", `names, separated by commas: ${Object.keys(form.schemes).join(", ")}`, { type: "text" }),
    field("effort", "effort", "how much planning may cost, in whole runs (0: rank only)", { ...number, placeholder: "16" }));
}

const wanted = (goal) => Object.fromEntries([...goal.querySelectorAll("[data-goal]")].filter((input) => input.value.trim()).map((input) => [input.dataset.goal, input.value.trim()]));

async function before(name, planned) {
  if (!name) return {};
  const { sections } = await ask("/api/experiment", { name, planned });
  return Object.fromEntries(sections.flatMap((section) => section.keys.map((each) => [section.name ? `${section.name}.${each.key}` : each.key, each.value])));
}

function suggestion(from, changes) {
  const moment = new Date().toISOString().replace(/[-:]/g, "").replace("T", "-").slice(0, 15);
  const words = [(from ?? "run").split("/").at(-1).replace(/-\d{8}-\d{6}$/, ""), ...changes.map(([key, value]) => `${key.split(".").at(-1)}=${value}`)];
  return `${words.join("-").replace(/[^A-Za-z0-9._=+-]/g, "-").slice(0, 84)}-${moment}`;
}

function control(field, given) {
  const value = given === undefined ? field.default : given;
  if (field.kind === "switch") return h("input", { type: "checkbox", checked: Boolean(value) });
  if (field.kind === "choice") {
    const none = field.optional ? [h("option", { value: "" }, "not set")] : [];
    return h("select", {}, none, field.choices.map((each) => h("option", { value: each, selected: each === value }, each)));
  }
  const shown = value === null || value === undefined ? "" : field.kind === "table" ? table(value) : field.kind === "list" ? list(value) : value;
  if (field.kind === "whole" || field.kind === "number") {
    return h("input", { type: "number", step: field.kind === "whole" ? 1 : "any", min: field.min ?? field.above, max: field.max, value: shown, placeholder: field.optional ? "not set" : null, required: !field.optional });
  }
  return h("input", { type: "text", value: shown, placeholder: field.optional ? "not set" : field.kind === "table" ? "{ }" : field.kind === "list" ? "[ ]" : null, list: field.suggested.length ? `list-${field.path}` : null });
}

function suggestions(field) {
  return field.suggested.length ? h("datalist", { id: `list-${field.path}` }, field.suggested.map((each) => h("option", { value: each }))) : null;
}

// A table as TOML writes it inline.
function table(value) {
  const entries = Object.entries(value ?? {});
  return entries.length ? `{ ${entries.map(([key, each]) => `${key} = ${JSON.stringify(each)}`).join(", ")} }` : "";
}

// A list as TOML writes it; without brackets and quotes, commas part its words, too.
function list(value) {
  return value?.length ? JSON.stringify(value) : "";
}

// `section.key=value`, as --set takes it; nothing where the default was left.
function setting(path, field, input) {
  if (field.kind === "switch") return input.checked === Boolean(field.default) ? [] : [`${path}=${input.checked}`];
  const value = input.value.trim();
  if (value === "" || value === String(field.default)) return [];
  if (["whole", "number", "table", "list"].includes(field.kind)) return [`${path}=${value}`];
  return [`${path}=${JSON.stringify(value)}`];
}

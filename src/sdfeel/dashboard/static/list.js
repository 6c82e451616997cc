// All runs: sorted, filtered, grouped, live; chosen ones go to the comparison.

import { breakable, h, link, renew, table } from "./dom.js";
import { ago, count, percent } from "./format.js";
import { latest, listen } from "./live.js";
import { jobList } from "./jobs.js";
import { parse } from "./query.js";
import { sample } from "./look.js";
import { USUAL, added, chooser, shown as printed } from "./columns.js";
import { everyKey, prepare, value } from "./values.js";
import { grouped } from "./grouping.js";
import { saveCsv } from "./csv.js";
import { folderList } from "./folders.js";
import { tagList } from "./notes.js";
import { Parallel } from "./parallel.js";
import { Pareto } from "./pareto.js";

const MOST = 60;
const ROOM = 200; // rows that are drawn until somebody wants all: a thousand would keep a browser busy

const runs = new Map();
const rows = new Map();
const chosen = new Set();
const open = new Set(); // groups that are unfolded
const order = { key: "modified", down: true };
let room = ROOM;
const filter = { text: "", state: "", scheme: "", folder: "", group: "" };
let extra = []; // keys of columns that were added
let question = parse("");
let folders = [];

const columns = () => [...USUAL.slice(0, 3), ...extra.map(added), ...USUAL.slice(3)]; // what was asked for is in sight

export async function show(main, about, query) {
  document.title = `runs · ${about.directory} · sdfeel`;
  for (const key of Object.keys(filter)) filter[key] = query.get(key) ?? "";
  extra = query.getAll("column").slice(0, 20);
  order.key = query.get("sort") ?? "modified";
  order.down = query.get("order") !== "up";
  const parts = {
    about, count: h("p", { class: "soft", role: "status" }, "Looking for runs …"), folders: h("div", {}),
    body: null, more: h("button", { type: "button", hidden: true }, "Show all"), jobs: h("div", {}), basket: h("div", { class: "basket", hidden: true }),
    states: h("select", { "aria-label": "State" }), schemes: h("select", { "aria-label": "Scheme" }),
    within: h("button", { type: "button", class: "chip", hidden: true }),
  };
  parts.more.addEventListener("click", () => { room = Infinity; draw(parts); });
  parts.within.addEventListener("click", () => { filter.folder = ""; draw(parts); });
  const hint = "a name, or scheme = sd-feel and tau1 >= 5 and accuracy > 90%";
  const text = h("input", { type: "search", placeholder: hint, "aria-label": "Filter by name", "aria-describedby": "question", value: filter.text });
  const by = h("input", { list: "keys", placeholder: "nothing", "aria-label": "Group by", class: "key", value: filter.group });
  const problem = h("p", { class: "problem-text note", id: "question", role: "status" });
  const inquire = latest(async () => {
    const [found, group] = [parse(text.value), by.value.trim()];
    await prepare(found.keys, runs.values());
    try { await prepare([...extra, ...(group ? [group] : [])], runs.values()); } catch (error) { return { found, error }; }
    return { found, group };
  }, (told, wrong) => {
    if (told) question = told.found;
    if (told && !told.error) filter.group = told.group;
    problem.textContent = (wrong ?? told.error)?.message ?? "";
    rows.clear();
    draw(parts);
  });
  text.addEventListener("input", () => { filter.text = text.value; });
  text.addEventListener("input", inquire);
  by.addEventListener("change", inquire);
  const box = table("all runs", [], []);
  box.classList.add("card", "runs");
  parts.box = box;
  parts.body = box.querySelector("tbody");
  parts.head = box.querySelector("thead tr");
  const picker = chooser({
    extra: () => extra, names: () => everyKey([...runs.values()]),
    add: (key) => { if (!columns().some((column) => column.key === key)) extra.push(key); change(); },
    remove: (key) => { extra = extra.filter((each) => each !== key); change(); },
  });
  const change = async () => {
    const wanted = extra;
    for (const key of wanted) {
      try { await prepare([key], runs.values()); } catch (error) { extra = extra.filter((each) => each !== key); problem.textContent = error.message; }
    }
    header(parts);
    picker.draw();
    rows.clear();
    draw(parts);
  };
  by.addEventListener("focus", () => picker.fill(), { once: true });
  parts.parallel = new Parallel({ extra: () => extra, choose: (names) => { names.slice(0, MOST).forEach((name) => chosen.add(name)); rows.clear(); draw(parts); } });
  parts.pareto = new Pareto();
  parts.views = [view("Parallel coordinates", parts.parallel, parts), view("Accuracy against costs", parts.pareto, parts)];
  for (const name of (sessionStorage.getItem("sdfeel-chosen") ?? "").split("\n").filter(Boolean)) chosen.add(name);
  for (const key of ["state", "scheme"]) {
    parts[`${key}s`].addEventListener("change", (event) => { filter[key] = event.target.value; draw(parts); });
  }
  header(parts);
  picker.draw();
  main.replaceChildren(
    h("div", { class: "title" }, h("h1", {}, about.directory), parts.count),
    parts.jobs, parts.folders,
    h("div", { class: "bar filters" }, text, parts.states, parts.schemes, parts.within),
    problem,
    h("div", { class: "bar" }, h("label", { class: "soft" }, "group by ", by), picker.element, h("button", { type: "button", onclick: saveTable }, "Save table (CSV)")),
    box, parts.more, ...parts.views.map((each) => each.element), parts.basket);
  setInterval(() => rows.forEach((row, name) => { const cell = row.querySelector(".ago"); if (cell && runs.has(name)) cell.textContent = ago(runs.get(name).modified); }), 10000);
  let first = true;
  listen({}, {
    runs: ({ changed, gone, whole }) => {
      const here = new Set(changed.map((run) => run.name));
      const left = whole ? [...runs.keys()].filter((name) => !here.has(name)) : gone; // we may have missed some
      const other = changed.filter((run) => JSON.stringify(runs.get(run.name)) !== JSON.stringify(run));
      other.forEach((run) => { runs.set(run.name, run); rows.delete(run.name); });
      left.forEach((name) => { runs.delete(name); rows.delete(name); chosen.delete(name); });
      if ((first && filter.text) || filter.group || extra.length) inquire(); else draw(parts);
      first = false;
    },
    groups: (found) => { folders = found; draw(parts); },
    jobs: (jobs) => parts.jobs.replaceChildren(...jobList(jobs, about)),
  });
}

const classes = (column) => [column.number && "number", column.wide && "wide", USUAL.includes(column) && column.key].filter(Boolean).join(" ");

// A picture that is drawn only while it is unfolded.
function view(title, picture, parts) {
  const element = h("details", { class: "card" }, h("summary", {}, title), picture.element);
  element.addEventListener("toggle", () => { if (element.open) picture.update(shown()); });
  return { element, update: () => { if (element.open) picture.update(shown()); }, parts };
}

function header(parts) {
  const all = h("input", { type: "checkbox", "aria-label": "Choose all shown", onchange: (event) => chooseAll(event.target.checked, parts) });
  parts.box.classList.toggle("widened", extra.length > 0);
  parts.head.replaceChildren(h("th", { scope: "col", class: "check" }, all), ...columns().map((column) => h("th", { scope: "col", class: classes(column), "data-key": column.key },
    h("button", { type: "button", class: "sort", onclick: () => sortBy(column, parts) }, column.title))));
}

function sortBy(column, parts) {
  order.down = order.key === column.key ? !order.down : Boolean(column.number);
  order.key = column.key;
  draw(parts);
}

function compared(x, y) {
  const [no, none] = [x === null || x === undefined, y === null || y === undefined];
  if (no || none) return no && none ? 0 : no ? Infinity : -Infinity; // what is unknown comes last
  return typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
}

function shown() {
  const found = [...runs.values()].filter((run) => question.matches((key) => value(run, key))
    && (!filter.state || run.state === filter.state) && (!filter.scheme || run.scheme === filter.scheme) && (!filter.folder || run.folder === filter.folder));
  const sign = order.down ? -1 : 1;
  return found.sort((a, b) => {
    const way = compared(value(a, order.key), value(b, order.key));
    if (!way) return a.name.localeCompare(b.name, "en", { numeric: true });
    return Number.isFinite(way) ? sign * way : way;
  });
}

function draw(parts) {
  const found = shown();
  const running = found.filter((run) => run.state === "running").length;
  parts.count.textContent = runs.size
    ? `${count(found.length)}${found.length < runs.size ? ` of ${count(runs.size)}` : ""} run${found.length === 1 ? "" : "s"}${running ? `, ${running} running` : ""}`
    : "No runs here yet: they appear on their own as soon as they start.";
  options(parts.states, "all states", [...new Set([...runs.values()].map((run) => run.state))].sort(), filter.state);
  options(parts.schemes, "all schemes", [...new Set([...runs.values()].map((run) => run.scheme))].sort(), filter.scheme);
  parts.within.hidden = !filter.folder;
  parts.within.textContent = `in ${filter.folder} ✕`;
  parts.within.setAttribute("aria-label", `Show runs outside ${filter.folder}, too`);
  renew(parts.folders, [folders, folders.length ? runs.size : 0], () => folderList(folders, runs.values(), { allow: parts.about.allow_start, only: (folder) => { filter.folder = folder; draw(parts); } }));
  const all = filter.group ? inGroups(found, parts) : found.slice(0, room).map((run) => row(run, parts));
  const elements = all.slice(0, room);
  parts.more.hidden = (filter.group ? all.length : found.length) <= room;
  parts.more.textContent = `Show all ${count(filter.group ? all.length : found.length)}`;
  place(parts.body, elements);
  for (const th of parts.head.querySelectorAll("[data-key]")) {
    th.setAttribute("aria-sort", th.dataset.key !== order.key ? "none" : order.down ? "descending" : "ascending");
  }
  basket(parts);
  parts.views.forEach((each) => each.update());
  const kept = new URLSearchParams(Object.entries(filter).filter(([, each]) => each));
  extra.forEach((key) => kept.append("column", key));
  if (order.key !== "modified" || !order.down) { kept.set("sort", order.key); kept.set("order", order.down ? "down" : "up"); }
  history.replaceState(null, "", kept.size ? `/?${kept}` : "/");
}

// Rows are put in again only if something moved: a focused one would lose the focus.
function place(body, elements) {
  const old = body.children;
  if (old.length === elements.length && !elements.some((element, index) => old[index] !== element)) return;
  const active = document.activeElement;
  const focused = active?.closest?.("tr")?.dataset.name;
  const group = active?.closest?.("tr")?.dataset.group;
  const kind = active?.tagName;
  body.replaceChildren(...elements);
  if (focused && rows.get(focused)?.isConnected) rows.get(focused).querySelector(kind === "A" ? "a" : "input").focus();
  if (group !== undefined) [...body.querySelectorAll("[data-group]")].find((each) => each.dataset.group === group)?.querySelector(kind === "INPUT" ? "input" : "button").focus();
}

function inGroups(found, parts) {
  const keys = columns().map((column) => column.key);
  const groups = grouped(found, (run) => value(run, filter.group), keys, value);
  const ordering = (group) => { const own = group.means.get(order.key); return own?.mean ?? (order.key === filter.group || order.key === "name" ? group.name : own); };
  if (order.key !== "modified") groups.sort((a, b) => (order.down ? -1 : 1) * (compared(ordering(a), ordering(b)) || 0));
  return groups.flatMap((group) => [groupRow(group, parts), ...(open.has(group.name) ? group.runs.map((run) => row(run, parts)) : [])]);
}

function groupRow(group, parts) {
  const unfolded = open.has(group.name);
  const turn = () => { if (unfolded) open.delete(group.name); else open.add(group.name); draw(parts); };
  const names = group.runs.map((run) => run.name);
  const check = h("input", { type: "checkbox", checked: names.every((name) => chosen.has(name)), "aria-label": `Choose all of ${group.name}`, onchange: (event) => { names.forEach((name) => chosen[event.target.checked ? "add" : "delete"](name)); names.forEach((name) => rows.delete(name)); draw(parts); } });
  const cell = (column) => {
    if (column.key === "name") return h("button", { type: "button", class: "plain fold", "aria-expanded": String(unfolded), onclick: turn }, `${unfolded ? "▾" : "▸"} ${group.name} `, h("span", { class: "soft" }, `${count(names.length)} run${names.length === 1 ? "" : "s"}`));
    const own = group.means.get(column.key);
    if (typeof own === "string") return own || "-";
    if (column.key === "modified") return printed("modified", own.most);
    if (column.key === "seed" && own.least !== own.most) return `${new Set(group.runs.map((run) => run.seed)).size} seeds`;
    const same = own.least === own.most;
    const mean = Number.isInteger(own.mean) ? own.mean : +own.mean.toPrecision(6);
    return h("span", { title: same ? "" : `from ${printed(column.key, own.least)} to ${printed(column.key, own.most)}` }, same ? "" : h("span", { class: "soft" }, "⌀ "), printed(column.key, mean));
  };
  return h("tr", { class: "group", "data-group": group.name }, h("td", { class: "check" }, check), columns().map((column) => h("td", { class: classes(column) }, cell(column))));
}

function options(select, all, names, chosenOne) {
  const wanted = JSON.stringify([names, chosenOne]);
  if (select.dataset.shown === wanted) return;
  select.dataset.shown = wanted;
  select.replaceChildren(h("option", { value: "" }, all), ...names.map((name) => h("option", { value: name, selected: name === chosenOne }, name)));
}

function row(run, parts) {
  if (rows.has(run.name)) return rows.get(run.name);
  const at = run.name.lastIndexOf("/") + 1;
  const check = h("input", {
    type: "checkbox", checked: chosen.has(run.name), "aria-label": `Choose ${run.name}`,
    onchange: (event) => { chosen[event.target.checked ? "add" : "delete"](run.name); basket(parts); },
  });
  const values = {
    name: [h("a", { href: link("/run", { name: run.name }), title: run.note || null }, sample(run.style, 22), h("span", { class: "soft" }, breakable(run.name.slice(0, at))), h("span", { class: "strong" }, breakable(run.name.slice(at)))), tagList(run.tags)],
    state: h("span", { class: "pill", "data-state": run.state, title: run.reason ?? "" }, run.state),
    accuracy: run.accuracy === null ? "-" : h("span", { class: "meter", style: { "--share": run.accuracy } }, percent(run.accuracy)),
    modified: h("span", { class: "ago" }, run.modified ? ago(run.modified) : "-"),
  };
  const element = h("tr", { "data-name": run.name }, h("td", { class: "check" }, check),
    columns().map((column) => h("td", { class: classes(column) }, values[column.key] ?? printed(column.key, value(run, column.key)))));
  rows.set(run.name, element);
  return element;
}

function chooseAll(wanted, parts) {
  for (const run of shown().slice(0, MOST)) chosen[wanted ? "add" : "delete"](run.name);
  if (!wanted) chosen.clear();
  rows.clear();
  draw(parts);
}

function saveTable() {
  const keys = columns().map((column) => column.key);
  saveCsv("runs.csv", [keys, ...shown().map((run) => keys.map((key) => value(run, key)))]);
}

function basket(parts) {
  sessionStorage.setItem("sdfeel-chosen", [...chosen].join("\n")); // it survives going back
  parts.basket.hidden = !chosen.size;
  const query = new URLSearchParams([...chosen].sort().map((name) => ["run", name]));
  const tooMany = chosen.size > MOST;
  parts.basket.replaceChildren(
    h("span", { role: "status" }, tooMany ? `${chosen.size} chosen: at most ${MOST} can be compared` : `${chosen.size} chosen`),
    ...(tooMany ? [] : [h("a", { class: "button primary", href: `/compare?${query}` }, "Compare")]),
    h("button", { type: "button", onclick: () => chooseAll(false, parts) }, "Clear"));
}

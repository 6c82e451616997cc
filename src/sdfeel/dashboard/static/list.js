// All runs: sorted, filtered, live; chosen ones go to the comparison.

import { h, link, table } from "./dom.js";
import { ago, amount, count, duration, percent } from "./format.js";
import { ask, listen } from "./live.js";
import { jobList } from "./jobs.js";
import { parse, resolve } from "./query.js";
import { sample } from "./look.js";

const MOST = 60;
const ROOM = 200; // rows that are drawn until somebody asks for all: a thousand take a browser long
const COLUMNS = [
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

const runs = new Map();
const rows = new Map();
const chosen = new Set();
const order = { key: "modified", down: true };
let room = ROOM;
const filter = { text: "", state: "", scheme: "" };
const OWN = new Set([...COLUMNS.map((column) => column.key), "loss", "folder", "reason"]);
let question = parse("");
let meant = new Map(); // tau1: scheme.tau1
let asked = null; // the experiments' keys, once a question needs them

export async function show(main, about, query) {
  document.title = `runs · ${about.directory} · sdfeel`;
  for (const key of Object.keys(filter)) filter[key] = query.get(key) ?? "";
  if (COLUMNS.some((column) => column.key === query.get("sort"))) order.key = query.get("sort");
  order.down = query.get("order") !== "up";
  const parts = {
    count: h("p", { class: "soft", role: "status" }, "Looking for runs …"),
    body: null, more: h("button", { type: "button", hidden: true }, "Show all"), jobs: h("div", {}), basket: h("div", { class: "basket", hidden: true }),
    states: h("select", { "aria-label": "State" }), schemes: h("select", { "aria-label": "Scheme" }),
  };
  parts.more.addEventListener("click", () => { room = Infinity; draw(parts); });
  const hint = "a name, or scheme = sd-feel and tau1 >= 5 and accuracy > 90%";
  const text = h("input", { type: "search", placeholder: hint, "aria-label": "Filter by name", "aria-describedby": "question", value: filter.text });
  const problem = h("p", { class: "problem-text note", id: "question", role: "status" });
  const inquire = async () => {
    filter.text = text.value;
    try {
      const found = parse(filter.text);
      const others = [...found.keys].filter((key) => !OWN.has(key));
      if (others.length && asked === null) asked = await ask("/api/keys");
      const names = new Set(Object.values(asked ?? {}).flatMap((values) => Object.keys(values)));
      meant = new Map(others.map((key) => [key, resolve(names, key)]));
      question = found;
      problem.textContent = "";
    } catch (error) {
      problem.textContent = error.message;
    }
    draw(parts);
  };
  text.addEventListener("input", inquire);
  if (filter.text) inquire();
  for (const name of (sessionStorage.getItem("sdfeel-chosen") ?? "").split("\n").filter(Boolean)) chosen.add(name);
  for (const key of ["state", "scheme"]) {
    parts[`${key}s`].addEventListener("change", (event) => { filter[key] = event.target.value; draw(parts); });
  }
  const head = COLUMNS.map((column) => h("th", { scope: "col", class: cells(column), "data-key": column.key },
    h("button", { type: "button", class: "sort", onclick: () => sortBy(column, parts) }, column.title)));
  const all = h("input", { type: "checkbox", "aria-label": "Choose all shown", onchange: (event) => chooseAll(event.target.checked, parts) });
  const box = table("all runs", [h("th", { scope: "col", class: "check" }, all), ...head], []);
  box.classList.add("card", "runs");
  parts.body = box.querySelector("tbody");
  parts.head = box.querySelector("thead");
  main.replaceChildren(
    h("div", { class: "title" }, h("h1", {}, about.directory), parts.count),
    parts.jobs,
    h("div", { class: "bar filters" }, text, parts.states, parts.schemes, h("button", { type: "button", onclick: saveTable }, "Save table (CSV)")),
    problem,
    box, parts.more, parts.basket);
  setInterval(() => rows.forEach((row, name) => { row.querySelector(".ago").textContent = ago(runs.get(name).modified); }), 10000);
  listen({}, {
    runs: ({ changed, gone }) => {
      changed.forEach((run) => runs.set(run.name, run));
      changed.forEach((run) => rows.delete(run.name));
      gone.forEach((name) => { runs.delete(name); rows.delete(name); chosen.delete(name); });
      draw(parts);
    },
    jobs: (jobs) => parts.jobs.replaceChildren(...jobList(jobs, about)),
  });
}

const cells = (column) => [column.number && "number", column.wide && "wide", column.key].filter(Boolean).join(" ");

function sortBy(column, parts) {
  order.down = order.key === column.key ? !order.down : Boolean(column.number);
  order.key = column.key;
  draw(parts);
}

function shown() {
  const found = [...runs.values()].filter((run) =>
    question.matches((key) => (OWN.has(key) ? run[key] : asked[run.name]?.[meant.get(key)])) && (!filter.state || run.state === filter.state) && (!filter.scheme || run.scheme === filter.scheme));
  const sign = order.down ? -1 : 1;
  return found.sort((a, b) => {
    const [x, y] = [a[order.key], b[order.key]];
    if (x === y) return a.name.localeCompare(b.name, "en", { numeric: true });
    if (x === null || y === null) return x === null ? 1 : -1; // what is unknown comes last
    return sign * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
  });
}

function draw(parts) {
  const found = shown();
  const running = found.filter((run) => run.state === "running").length;
  parts.count.textContent = runs.size
    ? `${count(found.length)}${found.length < runs.size ? ` of ${count(runs.size)}` : ""} run${found.length === 1 ? "" : "s"}${running ? `, ${running} running` : ""}`
    : "No runs here yet: they appear by themselves as soon as they start.";
  options(parts.states, "all states", [...new Set([...runs.values()].map((run) => run.state))].sort(), filter.state);
  options(parts.schemes, "all schemes", [...new Set([...runs.values()].map((run) => run.scheme))].sort(), filter.scheme);
  const elements = found.slice(0, room).map((run) => row(run, parts));
  parts.more.hidden = found.length <= room;
  parts.more.textContent = `Show all ${count(found.length)}`;
  const old = parts.body.children;
  // Rows are put in again only if something moved: a focused one would lose the focus.
  if (old.length !== elements.length || elements.some((element, index) => old[index] !== element)) {
    const focused = document.activeElement?.closest?.("tr")?.dataset.name;
    const kind = document.activeElement?.tagName;
    parts.body.replaceChildren(...elements);
    if (focused && rows.has(focused)) rows.get(focused).querySelector(kind === "A" ? "a" : "input").focus();
  }
  for (const th of parts.head.querySelectorAll("[data-key]")) {
    th.setAttribute("aria-sort", th.dataset.key !== order.key ? "none" : order.down ? "descending" : "ascending");
  }
  basket(parts);
  const kept = new URLSearchParams(Object.entries(filter).filter(([, value]) => value));
  if (order.key !== "modified" || !order.down) { kept.set("sort", order.key); kept.set("order", order.down ? "down" : "up"); }
  history.replaceState(null, "", kept.size ? `/?${kept}` : "/");
}

function options(select, all, names, value) {
  const wanted = JSON.stringify([names, value]);
  if (select.dataset.shown === wanted) return;
  select.dataset.shown = wanted;
  select.replaceChildren(h("option", { value: "" }, all), ...names.map((name) => h("option", { value: name, selected: name === value }, name)));
}

function row(run, parts) {
  if (rows.has(run.name)) return rows.get(run.name);
  const place = run.name.lastIndexOf("/") + 1;
  const check = h("input", {
    type: "checkbox", checked: chosen.has(run.name), "aria-label": `Choose ${run.name}`,
    onchange: (event) => { chosen[event.target.checked ? "add" : "delete"](run.name); basket(parts); },
  });
  const values = {
    name: h("a", { href: link("/run", { name: run.name }) }, sample(run.style, 22), h("span", { class: "soft" }, run.name.slice(0, place)), h("span", { class: "strong" }, run.name.slice(place))),
    state: h("span", { class: "pill", "data-state": run.state, title: run.reason ?? "" }, run.state),
    accuracy: run.accuracy === null ? "-" : h("span", { class: "meter", style: { "--share": run.accuracy } }, percent(run.accuracy)),
    seconds: duration(run.seconds), iterations: count(run.iterations), bytes: amount(run.bytes), seed: run.seed ?? "-",
    modified: h("span", { class: "ago" }, run.modified ? ago(run.modified) : "-"),
  };
  const element = h("tr", { "data-name": run.name }, h("td", { class: "check" }, check),
    COLUMNS.map((column) => h("td", { class: cells(column) }, values[column.key] ?? run[column.key])));
  rows.set(run.name, element);
  return element;
}

function chooseAll(wanted, parts) {
  for (const run of shown().slice(0, MOST)) chosen[wanted ? "add" : "delete"](run.name);
  if (!wanted) chosen.clear();
  parts.body.querySelectorAll("tr").forEach((each) => { each.querySelector("input").checked = chosen.has(each.dataset.name); });
  basket(parts);
}

// The table as it is shown, for a spreadsheet; a text that begins like a formula gets a quote before it.
function saveTable() {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const safe = typeof value === "string" && /^[=+\-@\t]/.test(text) ? `'${text}` : text;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const keys = COLUMNS.map((column) => column.key);
  const lines = [keys, ...shown().map((run) => keys.map((key) => run[key]))].map((line) => line.map(cell).join(","));
  const address = URL.createObjectURL(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }));
  h("a", { href: address, download: "runs.csv" }).click();
  URL.revokeObjectURL(address);
}

function basket(parts) {
  sessionStorage.setItem("sdfeel-chosen", [...chosen].join("\n")); // it survives going back
  parts.basket.hidden = !chosen.size;
  const query = new URLSearchParams([...chosen].sort().map((name) => ["run", name]));
  const tooMany = chosen.size > MOST;
  parts.basket.replaceChildren(
    h("span", { role: "status" }, tooMany ? `${chosen.size} chosen: at most ${MOST} can be compared` : `${chosen.size} chosen`),
    tooMany ? null : h("a", { class: "button primary", href: `/compare?${query}` }, "Compare"),
    h("button", { type: "button", onclick: () => chooseAll(false, parts) }, "Clear"));
}

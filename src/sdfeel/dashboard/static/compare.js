// Several runs side by side; the address keeps the selection.

import { breakable, card, choice, fail, h, link, table } from "./dom.js";
import { ask, listen, oneAtATime } from "./live.js";
import { Charts } from "./chart.js";
import { PICTURES, sample } from "./look.js";

export async function show(main, about, query) {
  document.title = "comparison · sdfeel";
  document.getElementById("crumbs").replaceChildren(h("a", { href: "/" }, about.directory), h("span", { class: "soft" }, "/"), h("span", {}, "comparison"));
  const charts = new Charts();
  const [results, differences, title] = [h("div", {}), h("div", {}), h("p", { class: "soft", role: "status" })];
  const target = h("input", { type: "number", min: 0, max: 100, step: "any", class: "small", "aria-label": "Target accuracy in percent" });
  const thinned = h("p", { class: "soft note" });
  const problem = h("span", { class: "problem-text", role: "alert" });

  const load = async () => {
    const data = await ask("/api/compare", query);
    problem.textContent = "";
    history.replaceState(null, "", `/compare?${query}`);
    const names = query.getAll("run");
    const shared = common(data.charts.lines.map((line) => line.label));
    data.charts.lines.forEach((line) => { line.short = line.label.slice(shared); });
    title.textContent = `${names.length} runs${data.charts.lines.length < names.length ? ` in ${data.charts.lines.length} lines` : ""}`;
    if (document.activeElement !== target) target.value = data.target === null ? "" : +(100 * data.target).toFixed(2);
    thinned.textContent = data.thinned ?? "";
    charts.update(data.charts, data.target === null ? "" : `target ${+(100 * data.target).toFixed(2)} %`);
    results.replaceChildren(resultTable(data));
    differences.replaceChildren(...differenceTable(data));
    pictures.forEach(([how, each]) => { each.href = `/picture?${query}&${how}`; });
    tables.forEach(([ending, each]) => { each.href = `/table?${query}&as=${ending}`; });
  };
  const change = (key, value) => {
    if (value) query.set(key, value); else query.delete(key);
    load().catch((error) => { problem.textContent = error.message; });
  };
  target.addEventListener("change", () => change("target", target.value === "" ? "" : String(target.value / 100)));
  const seeds = choice("Seeds", ["each run", "mean over seeds"], query.get("seeds") === "mean" ? 1 : 0, (index) => change("seeds", index ? "mean" : ""));
  const pictures = Object.entries(PICTURES).map(([ending, how]) => [how, h("a", { download: "" }, ending)]);
  const tables = Object.entries({ tex: "LaTeX table", csv: "CSV" }).map(([ending, text]) => [ending, h("a", { class: "button", download: "" }, text)]);
  await load().catch(fail);
  if (!results.childElementCount) return;
  const again = oneAtATime(load);
  const wanted = () => new Set(query.getAll("run"));
  let first = true; // the whole list comes first, and is what was just drawn
  listen({}, { runs: ({ changed }) => { if (!first && changed.some((run) => wanted().has(run.name))) again(); first = false; } });
  main.replaceChildren(
    h("div", { class: "title" }, h("h1", {}, "Comparison"), title),
    h("div", { class: "bar" }, seeds, h("label", {}, "target ", target, " %"), problem, h("span", { class: "grow" }), h("span", { class: "downloads" }, h("span", { class: "soft" }, "Save picture:"), ...pictures.map(([, each]) => each)), ...tables.map(([, each]) => each)),
    card(null, charts.element, thinned), card("Results", results), card("What differs", differences),
    card("Runs", h("ul", { class: "names" }, query.getAll("run").map((name) => h("li", {}, h("a", { href: link("/run", { name }) }, name), " ",
      h("button", { type: "button", class: "plain", "aria-label": `Leave out ${name}`, onclick: (event) => leaveOut(name, event.target, query, load) }, "✕"))))));
}

function leaveOut(name, button, query, load) {
  const rest = query.getAll("run").filter((each) => each !== name);
  if (!rest.length) return;
  query.delete("run");
  rest.forEach((each) => query.append("run", each));
  button.closest("li").remove();
  load();
}

// How many characters all labels share, up to the last slash.
function common(labels) {
  if (labels.length < 2) return 0;
  let length = 0;
  while (length < labels[0].length && labels.every((label) => label[length] === labels[0][length])) length += 1;
  return labels[0].lastIndexOf("/", length) + 1;
}

function resultTable(data) {
  const head = data.table.columns.map((column) => h("th", { scope: "col", class: column.numeric ? "number" : "" }, column.title));
  const styles = new Map(data.charts.lines.map((line) => [line.label, line.style]));
  const cellOf = (cell, index) => {
    if (cell.best) return h("strong", { class: "best" }, `★ ${cell.text}`);
    return index || !styles.has(cell.text) ? cell.text : [sample(styles.get(cell.text), 22), breakable(cell.text)];
  };
  const rows = data.table.rows.map((row) => h("tr", {}, row.map((cell, index) => h("td", { class: data.table.columns[index].numeric ? "number" : "wrap" }, cellOf(cell, index)))));
  return h("div", {}, table("results", head, rows), h("p", { class: "soft note" }, "Times are virtual, or real where a run was deployed. ★ marks the best in a column. ± is half of the 95 % confidence interval (Student's t) over seeds. A band reaches from the lowest to the highest seed."));
}

function differenceTable(data) {
  const alike = h("p", { class: "soft note" }, `${data.alike} more keys are the same.`);
  if (!data.differences.length) return [h("p", {}, "These runs have the same experiment."), alike];
  const shared = common(data.names);
  const head = ["key", ...data.names.map((name) => name.slice(shared))];
  const rows = data.differences.map((row) => {
    const usual = most(row.values);
    return h("tr", {}, h("th", { scope: "row" }, row.key), row.values.map((value) => h("td", { class: value === usual ? "" : "differs" }, value)));
  });
  return [table("differences of the experiments", head, rows), alike];
}

function most(values) {
  const times = new Map();
  values.forEach((value) => times.set(value, (times.get(value) ?? 0) + 1));
  return [...times].sort((a, b) => b[1] - a[1])[0][0];
}

// One run, live.

import { card, fail, h, link, renew, table, whenSeen } from "./dom.js";
import { ago, count, duration, percent } from "./format.js";
import { applied, listen, seldom } from "./live.js";
import { Charts } from "./chart.js";
import { Graph } from "./graph.js";
import { Timeline } from "./timeline.js";
import { EventTable } from "./events.js";
import { holdings } from "./holdings.js";
import { experiment } from "./experiment.js";
import { PICTURES } from "./look.js";
import { nodeTable, verified } from "./nodes.js";
import { act, stopButton } from "./jobs.js";
import { notes } from "./notes.js";
import { auditCard } from "./audit.js";
import { WhatIf } from "./whatif.js";

const FILES = { "events.jsonl": "log", "experiment.toml": "experiment", "metrics.csv": "table of measurements", "model.safetensors": "model" };

export async function show(main, about, query) {
  const name = query.get("name") ?? "";
  const place = name.lastIndexOf("/") + 1;
  document.title = `${name} · sdfeel`;
  document.getElementById("crumbs").replaceChildren(h("a", { href: "/" }, about.directory), h("span", { class: "soft" }, "/"), h("span", {}, name));
  const part = {
    state: h("span", { class: "pill" }), changed: h("span", { class: "soft" }), progress: h("div", { class: "bar progress" }), actions: h("div", { class: "bar actions" }),
    figures: h("dl", { class: "figures" }), warnings: h("div", {}), thinned: h("p", { class: "soft note" }), facts: h("div", {}), phases: h("div", {}), nodes: h("div", {}), audit: h("div", {}), own: h("div", {}),
  };
  const [graph, timeline, events] = [new Graph(), new Timeline(name), new EventTable(name)];
  const charts = new Charts((seconds) => { graph.peek(seconds); timeline.mark(seconds); });
  const whatIf = new WhatIf(name, about);
  const written = notes(name, about);
  const held = h("div", {}, h("p", { class: "soft" }, "The data are being split again …"));
  const chosen = h("div", {});
  let jobs = [];
  let now = null; // what the page knows

  main.classList.add("loading");
  main.replaceChildren(
    h("div", { class: "title" }, h("h1", {}, h("span", { class: "soft" }, name.slice(0, place)), name.slice(place)), part.state, part.changed),
    written.element, part.progress, part.actions, part.warnings, part.nodes, part.audit, part.figures, part.thinned,
    card("Learning", charts.element),
    part.own,
    card("Servers", graph.element),
    card("Who waits for whom", timeline.element),
    h("div", { class: "halves" }, card("Where the time goes", part.phases), card("Setup", part.facts)),
    card("What if", whatIf.element),
    card("Who holds which data", held),
    card("Experiment", chosen),
    card("Events", events.element));
  const later = seldom(whenSeen(events.element, () => events.refresh()), 2000);

  // What changes without any message: how long ago something was heard.
  const tick = () => {
    if (document.hidden || !now?.run) return;
    part.changed.textContent = now.run.modified ? `changed ${ago(now.run.modified)}` : "";
    renew(part.nodes, [now.verification, now.nodes, now.nodes?.map((node) => node.heard && ago(node.heard))], ([checked, nodes]) => [...verified(checked), ...nodeTable(nodes)]);
  };
  const draw = () => {
    if (document.hidden) return; // until somebody looks
    if (now.why) { warn(part.warnings, [`This cannot be shown: ${now.why}`]); return; }
    main.classList.remove("loading");
    tick();
    fill(part, now.run);
    written.update(now.run);
    if (now.nodes?.length && !part.audit.childElementCount) part.audit.append(auditCard(name));
    actions(part.actions, now.run, about, jobs);
    charts.update(now.run.charts);
    timeline.update(now.run.seconds ?? 0, now.run.pace, now.run.state === "running");
    graph.update(now.graph);
    later();
  };
  document.addEventListener("visibilitychange", () => { if (now) draw(); });
  setInterval(tick, 10_000);
  let begun = false;
  listen({ name }, {
    run: (all) => {
      now = all;
      draw();
      if (begun) return;
      begun = true;
      holdings(name).then((found) => held.replaceChildren(found));
      experiment(name).then((found) => chosen.replaceChildren(found));
      whatIf.ready();
    },
    more: (change) => { now = applied(now, change); draw(); },
    gone: ({ gone }) => {
      if (!now) { fail(new Error(gone)); return; }
      part.state.textContent = "gone";
      part.state.dataset.state = "damaged";
    },
    jobs: (all) => { jobs = all; if (now?.run) actions(part.actions, now.run, about, jobs); },
  });
}

const warn = (part, all) => renew(part, all, (texts) => (texts.length ? [h("section", { class: "card warnings" }, h("h2", {}, "Warnings"), h("ul", {}, texts.map((text) => h("li", {}, text))))] : []));

// How far a running run has come, and about how long it will still take.
function progress(found) {
  if (!found) return [];
  const share = found.done / found.planned;
  const left = found.left === null ? "" : `, about ${duration(found.left)} left${found.early ? " at most" : ""}`;
  const text = `${count(found.done)} of ${count(found.planned)} iterations (${percent(share)})${left}`;
  return [h("progress", { max: found.planned, value: found.done, "aria-label": "Progress" }), h("span", { class: "soft" }, text)];
}

function fill(part, run) {
  part.state.textContent = run.state;
  part.state.dataset.state = run.state;
  renew(part.figures, run.figures, (rows) => rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  warn(part.warnings, run.warnings);
  part.progress.replaceChildren(...progress(run.progress));
  part.thinned.textContent = run.thinned ?? "";
  renew(part.facts, run.facts, (rows) => table("setup", [], rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row", class: "soft" }, name), h("td", { class: "wrap" }, value)))));
  renew(part.own, run.own, (rows) => rows.length ? [card("Each client's own model", h("div", { class: "own", tabindex: "0", role: "region", "aria-label": "accuracy of each client's own model" }, bars(rows)), h("p", { class: "soft note" }, "Test accuracy of every client's own model when it was last measured, the worst first."))] : []);
  renew(part.phases, run.phases, (rows) => [rows.length ? bars(rows) : h("p", { class: "soft" }, "No round is finished yet."),
    h("p", { class: "soft note" }, "Shares of the rounds' time, summed over all rounds.")]);
}

const bars = (rows) => h("div", { class: "phases" }, rows.map((row) => h("div", {}, h("span", {}, row.name), h("span", { class: "track" }, h("i", { style: { width: `${100 * row.share}%` } })), h("span", { class: "number" }, row.text))));

function actions(bar, run, about, jobs) {
  const mine = jobs.find((job) => job.name === run.name && ["running", "stopping"].includes(job.state));
  const failed = jobs.find((job) => job.name === run.name);
  const wanted = JSON.stringify([run.state, run.files, mine?.state, failed?.message]);
  if (bar.dataset.shown === wanted) return;
  bar.dataset.shown = wanted;
  const doing = [];
  if (about.allow_start) {
    if (mine?.state === "running") doing.push(stopButton(run.name, about));
    else if (mine) doing.push(h("span", { class: "soft" }, "stopping after this round …"));
    else if (["stopped", "crashed", "waiting"].includes(run.state)) doing.push(h("button", { type: "button", class: "resume", onclick: (event) => act(event.target, "/api/resume", { name: run.name }, about) }, "Resume"));
    if (failed?.state === "failed") doing.push(h("span", { class: "problem-text", role: "alert" }, failed.message));
    if (run.files.includes("experiment.toml")) doing.push(h("a", { class: "button", href: link("/new", { from: run.name }) }, "Start a similar run"));
  }
  const files = run.files.filter((file) => FILES[file]).map((file) => h("a", { href: link("/file", { name: run.name, file }), download: "" }, FILES[file]));
  bar.replaceChildren(...doing, h("span", { class: "downloads" }, h("span", { class: "soft" }, "Save: "), "picture as ", ...Object.entries(PICTURES).map(([ending, how]) => h("a", { href: `${link("/picture", { run: run.name })}&${how}`, download: "" }, ending)), ...files));
}

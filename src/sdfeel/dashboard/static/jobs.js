// What was started from the page.

import { h, link } from "./dom.js";
import { tell } from "./live.js";

export function jobList(jobs, about) {
  const current = jobs.filter((job) => ["running", "stopping", "failed"].includes(job.state) || job.what === "plan").slice(0, 12);
  if (!current.length) return [];
  return [h("section", { class: "card jobs" }, h("h2", {}, "Started from this page"), h("ul", {}, current.map((job) => h("li", { "data-name": job.name },
    h("span", { class: "pill", "data-state": job.state }, job.state),
    job.what === "plan" ? h("span", {}, `plan ${job.name}`) : h("a", { href: link("/run", { name: job.name }) }, job.name),
    job.what === "plan" && job.state === "finished" && planLinks(job.name),
    job.message && h("span", { class: "problem-text" }, job.message),
    job.state === "running" && stopButton(job.name, about)))))];
}

export function planLinks(name, allow = true) {
  return [allow && h("a", { href: link("/new", { from: name, planned: "yes" }) }, "start the best"),
    ...[["best.toml", "experiment"], ["plan.png", "picture"], ["plan.json", "record"]].map(([file, text]) => h("a", { href: link("/file", { name, file }), download: "" }, text))];
}

export function stopButton(name, about) {
  return h("button", { type: "button", class: "stop", onclick: (event) => act(event.target, "/api/stop", { name }, about) }, "Stop");
}

export async function act(button, path, content, about) {
  button.disabled = true;
  try {
    await tell(path, content, about.secret);
  } catch (error) {
    button.after(h("span", { class: "problem-text", role: "alert" }, error.message));
    button.disabled = false;
  }
}

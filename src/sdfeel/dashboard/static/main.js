// Which page this is, its frame, and light or dark.

import { fail } from "./dom.js";
import { ask } from "./live.js";
import * as list from "./list.js";
import * as run from "./run.js";
import * as compare from "./compare.js";
import * as start from "./start.js";

const THEMES = { auto: "◐ auto", light: "☀ light", dark: "☾ dark" };

function theme() {
  const button = document.getElementById("theme");
  let chosen = localStorage.getItem("sdfeel-theme") ?? "auto";
  const show = () => {
    if (chosen === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    button.textContent = THEMES[chosen];
    button.setAttribute("aria-label", `Colours: ${chosen}. Press to change.`);
  };
  button.addEventListener("click", () => {
    const names = Object.keys(THEMES);
    chosen = names[(names.indexOf(chosen) + 1) % names.length];
    localStorage.setItem("sdfeel-theme", chosen);
    show();
    dispatchEvent(new Event("themechange")); // what is drawn on a canvas has colours of its own
  });
  show();
}

async function open() {
  sessionStorage.removeItem("sdfeel-tries"); // all of the page is here
  theme();
  const pages = { "/": list, "/run": run, "/compare": compare, "/new": start };
  const about = await ask("/api/about");
  document.getElementById("new").hidden = !about.allow_start;
  const main = document.getElementById("main");
  await pages[location.pathname].show(main, about, new URLSearchParams(location.search));
}

open().catch(fail);

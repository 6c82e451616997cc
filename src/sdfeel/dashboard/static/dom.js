// Elements without templates: text is always text, so nothing that a log says can become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

export const h = (name, properties, ...children) => fill(document.createElement(name), properties, children);
export const svg = (name, properties, ...children) => fill(document.createElementNS(SVG, name), properties, children);

// A name that may be broken where its parts meet, and elsewhere only if it must.
export const breakable = (name) => name.split(/(?<=[/_,])/).flatMap((part) => [part, h("wbr")]).slice(0, -1);

export function card(title, ...children) {
  return h("section", { class: "card" }, title && h("h2", {}, title), ...children);
}

// Tables have boxes of their own that scroll, so that the page never does sideways.
export function table(label, head, rows) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", {},
      h("thead", {}, h("tr", {}, head.map((each) => (each instanceof Node ? each : h("th", { scope: "col" }, each))))),
      h("tbody", {}, rows)));
}

// Buttons of which one is pressed.
export function choice(label, names, chosen, choose) {
  const buttons = names.map((name, index) =>
    h("button", {
      type: "button", "aria-pressed": String(index === chosen),
      onclick: () => {
        buttons.forEach((each, other) => each.setAttribute("aria-pressed", String(other === index)));
        choose(index);
      },
    }, name));
  return h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}

// Fill an element only if what it shows has changed: a live page redraws little.
export function renew(element, shown, make) {
  const text = JSON.stringify(shown);
  if (element.dataset.shown === text) return;
  element.dataset.shown = text;
  element.replaceChildren(...[make(shown)].flat());
}

// Draw when somebody can see it: now, or as soon as it is scrolled into view or printed.
export function whenSeen(element, draw) {
  let [seen, late] = [true, false];
  const catchUp = () => { if (late) { late = false; draw(); } };
  new IntersectionObserver(([entry]) => {
    seen = entry.isIntersecting;
    if (seen) catchUp();
  }, { rootMargin: "200px" }).observe(element);
  addEventListener("beforeprint", catchUp); // paper shows all of the page
  return () => { if (seen && !document.hidden) draw(); else late = true; };
}

export function link(path, parameters) {
  const query = new URLSearchParams(parameters);
  return `${path}?${query}`;
}

export function fail(error) {
  document.getElementById("main").replaceChildren(
    h("section", { class: "card problem", role: "alert" }, h("h1", {}, "This cannot be shown"), h("p", {}, error.message),
      h("p", {}, h("a", { href: "/" }, "All runs"))));
}

// Asking the server, and hearing from it.

export async function ask(path, parameters = {}) {
  const query = parameters instanceof URLSearchParams ? parameters : new URLSearchParams(parameters);
  const answer = await fetch(`${path}?${query}`);
  return told(answer);
}

export async function tell(path, content, secret) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", "x-sdfeel-secret": secret },
    body: JSON.stringify(content),
  });
  return told(answer);
}

async function told(answer) {
  let content = null;
  const text = await answer.text();
  try { content = JSON.parse(text); } catch { /* an error in plain words */ }
  if (!answer.ok) throw new Error(content?.error ?? (text || `error ${answer.status}`));
  return content;
}

// What `delta` in views/updates.py says: entries that differ, and how a list goes on.
const [CUT, NEXT] = ["\0", "+"];
export function applied(old, change) {
  if (change === null || typeof change !== "object" || Array.isArray(change)) return change;
  const { [CUT]: kept, [NEXT]: next, ...rest } = change;
  if (kept === true) return rest;
  if (Array.isArray(old)) {
    if (next) return [...old.slice(0, kept), ...next];
    return old.map((each, index) => (index in rest ? applied(each, rest[index]) : each));
  }
  const found = { ...old };
  for (const [key, part] of Object.entries(rest)) found[key] = applied(old?.[key], part);
  return found;
}

// Server-sent events; the browser connects again by itself, and the page says how it stands.
export function listen(parameters, handlers) {
  const sign = document.getElementById("live");
  const source = new EventSource(`/api/stream?${new URLSearchParams(parameters)}`);
  const say = (state, text) => { sign.dataset.state = state; sign.textContent = text; };
  say("wait", "connecting");
  source.onopen = () => say("on", "live");
  source.onerror = () => say("off", "not connected");
  for (const [name, handle] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
  }
  addEventListener("pagehide", () => source.close());
  return source;
}

// At most once in so many milliseconds, and once more at the end.
export function seldom(work, wait) {
  let [timer, last] = [null, -Infinity];
  return () => {
    if (timer) return;
    timer = setTimeout(() => { timer = null; last = performance.now(); work(); }, Math.max(0, last + wait - performance.now()));
  };
}

// At most one at a time, and once more if something happened meanwhile.
export function oneAtATime(work) {
  let busy = false;
  let again = false;
  return async function run() {
    if (busy) { again = true; return; }
    busy = true;
    try { await work(); } finally {
      busy = false;
      if (again) { again = false; run(); }
    }
  };
}

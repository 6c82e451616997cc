// Asking the server, and hearing from it.

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const [SOON, LATE] = [500, 10_000]; // milliseconds before the first repetition of a request, and the most later on

// Reading changes nothing, so a request that got no answer is repeated until it gets one.
export async function ask(path, parameters = {}) {
  const query = parameters instanceof URLSearchParams ? parameters : new URLSearchParams(parameters);
  for (let wait = SOON; ; wait = Math.min(2 * wait, LATE)) {
    let [answer, text] = [null, ""];
    try {
      answer = await fetch(`${path}?${query}`);
      text = await answer.text();
    } catch { /* the server is away, or the network has changed */ }
    if (answer && (answer.status < 500 || wait > SOON)) return told(answer, text);
    await pause(wait);
  }
}

export async function tell(path, content, secret) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", "x-sdfeel-secret": secret },
    body: JSON.stringify(content),
  });
  return told(answer, await answer.text());
}

function told(answer, text) {
  let content = null;
  try { content = JSON.parse(text); } catch { /* an error in plain words */ }
  if (!answer.ok) throw new Error(content?.error ?? (text || `error ${answer.status}`));
  return content;
}

// Apply what `delta` in views/updates.py sends: entries that differ, and how a list continues.
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

const SILENT = 45_000; // milliseconds without any message, not even a `beat`, after which we connect anew

// Server-sent events. Whatever ends the connection, the page connects again, and says how it stands.
export function listen(parameters, handlers) {
  const sign = document.getElementById("live");
  const say = (state, text) => { sign.dataset.state = state; sign.textContent = text; sign.title = ""; };
  let [source, timer, wait, heard] = [null, null, SOON, performance.now()];
  const hang = () => { clearTimeout(timer); source?.close(); };
  const connect = () => {
    hang();
    heard = performance.now();
    source = new EventSource(`/api/stream?${new URLSearchParams(parameters)}`);
    source.onopen = () => { wait = SOON; heard = performance.now(); say("on", "live"); };
    source.onerror = () => {
      say("off", "not connected");
      if (source.readyState !== EventSource.CLOSED) return; // the browser tries again on its own
      timer = setTimeout(connect, wait);
      wait = Math.min(2 * wait, LATE);
    };
    const hear = (name, handle) => source.addEventListener(name, (event) => {
      heard = performance.now();
      handle(JSON.parse(event.data));
    });
    for (const [name, handle] of Object.entries(handlers)) hear(name, (content) => { say("on", "live"); handle(content); });
    hear("beat", () => {});
    hear("trouble", ({ error }) => { say("off", "cannot be read"); sign.title = error; });
  };
  say("wait", "connecting");
  connect();
  setInterval(() => { if (performance.now() - heard > SILENT) connect(); }, SILENT / 4);
  addEventListener("pagehide", hang);
  addEventListener("pageshow", (event) => { if (event.persisted) connect(); }); // back, from the browser's memory
}

// At most once in this many milliseconds, and once more at the end.
export function seldom(work, wait) {
  let [timer, last] = [null, -Infinity];
  return () => {
    if (timer) return;
    timer = setTimeout(() => { timer = null; last = performance.now(); work(); }, Math.max(0, last + wait - performance.now()));
  };
}

// For requests that change faster than they are answered. One is sent when nothing has changed for `wait` milliseconds,
// never two at a time; answers to outdated requests are dropped, so that no answer can overtake another.
export function latest(question, answer, wait = 0) {
  let [wanted, asked, busy, timer] = [0, 0, false, 0];
  const go = async () => {
    if (busy || asked === wanted) return;
    [busy, asked] = [true, wanted];
    let [found, error] = [null, null];
    try { found = await question(); } catch (problem) { error = problem; }
    busy = false;
    if (asked !== wanted) go();
    else answer(found, error);
  };
  return () => {
    wanted += 1;
    clearTimeout(timer);
    if (wait) timer = setTimeout(go, wait);
    else go();
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

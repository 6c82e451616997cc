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

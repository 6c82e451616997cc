"""How the page looks. Charts lie on white cards, so that they read the same in the dark."""

# The policy makes a browser refuse scripts, and anything from outside.
DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
<main>
{body}
</main>
<footer>Made by sdfeel.</footer>
</body>
</html>
"""

CSS = """
:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1d2430; --soft: #5b6572; --line: #dde2e8;
  --best: #00573f; --bar: #9dc6e8; --warn: #b45309;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161c; --card: #1b212a; --ink: #e7ebf0; --soft: #a3aebb; --line: #323b47;
    --best: #6fdcb5; --bar: #2f6491; --warn: #f0a94e;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main, footer { max-width: 1240px; margin: 0 auto; padding: 0 20px; }
footer { padding-block: 8px 32px; color: var(--soft); font-size: 14px; }
h1 { margin: 32px 0 0; font-size: 28px; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 0 0 10px; font-size: 18px; }
section { margin: 28px 0; }
.facts { margin: 6px 0 0; color: var(--soft); overflow-wrap: anywhere; }
.note { color: var(--soft); font-size: 14px; }
p.note { margin: 8px 2px 0; }
.scroll {
  overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
}
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 12px; text-align: right; white-space: nowrap; }
thead th { color: var(--soft); font-size: 14px; font-weight: 600; vertical-align: bottom; }
tbody tr { border-top: 1px solid var(--line); }
th:first-child { text-align: left; }
th.word, td.word { text-align: left; }
.name {
  display: block; width: max-content; max-width: 230px; white-space: normal;
  overflow-wrap: anywhere;
}
td strong { color: var(--best); }
.card {
  background: #ffffff; color: #222222; border: 1px solid var(--line); border-radius: 10px;
  padding: 14px;
}
.grid { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 10px; }
.chart svg { display: block; width: 100%; height: auto; }
.legend {
  display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 0 0 12px; padding: 0; list-style: none;
  font-size: 14px;
}
.legend li { display: flex; align-items: center; gap: 8px; overflow-wrap: anywhere; }
.swatch { flex: none; width: 48px; }
.swatch svg { display: block; width: 48px; height: 16px; }
.bar {
  display: inline-block; width: 90px; height: 10px; margin-right: 10px; border-radius: 3px;
  background: linear-gradient(var(--bar) 0 0) no-repeat 0 0 / calc(100% * var(--share)) 100%,
    var(--line);
}
.warn { border-left: 4px solid var(--warn); padding-left: 16px; }
ul { margin: 0; padding-left: 20px; }
li { overflow-wrap: anywhere; }
details {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 10px 16px;
}
summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; font: 14px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
@media (max-width: 900px) { .grid { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (max-width: 600px) {
  main, footer { padding: 0 12px; }
  h1 { font-size: 23px; margin-top: 20px; }
  .grid { grid-template-columns: minmax(0, 1fr); }
  .card { padding: 10px; }
  th, td { padding: 7px 10px; }
  .name { max-width: 170px; }
}
@media print { body { background: #ffffff; } .scroll { overflow: visible; } }
"""

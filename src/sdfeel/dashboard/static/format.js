// Numbers as the reports print them; what must read exactly alike comes from the server as text.

export function significant(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  const digits = Math.max(0, 2 - Math.floor(Math.log10(size)));
  return value.toFixed(Math.min(digits, 6));
}

export function unitFor(largest, units) {
  const fitting = units.filter((unit) => largest >= unit.since);
  return fitting.length ? fitting[fitting.length - 1] : units[0];
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds === 0) return "0 s";
  if (seconds < 0.09995) return `${significant(seconds * 1e3)} ms`;
  if (seconds < 99.95) return `${significant(seconds)} s`;
  if (seconds < 3599.5) return `${clock(Math.round(seconds))} min`;
  if (seconds < 48 * 3600 - 30) return `${clock(Math.round(seconds / 60))} h`;
  return `${significant(seconds / 86400)} days`;
}

const clock = (parts) => `${Math.floor(parts / 60)}:${String(parts % 60).padStart(2, "0")}`;

export function amount(bytes) {
  if (bytes === null || bytes === undefined) return "-";
  const names = ["B", "kB", "MB", "GB", "TB", "PB"];
  let place = 0;
  while (bytes >= 999.5 && place < names.length - 1) { bytes /= 1000; place += 1; }
  return `${place ? significant(bytes) : Math.round(bytes)} ${names[place]}`;
}

export const percent = (share) => (share === null || share === undefined ? "-" : `${(100 * share).toFixed(1)} %`);
export const count = (value) => (value === null || value === undefined ? "-" : value.toLocaleString("en"));
export const number = (value) => (value === null || value === undefined ? "-" : significant(value));

export function ago(seconds) {
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  if (passed < 10) return "now";
  if (passed < 90) return `${Math.round(passed)} s ago`;
  if (passed < 5400) return `${Math.round(passed / 60)} min ago`;
  if (passed < 129600) return `${Math.round(passed / 3600)} h ago`;
  return new Date(seconds * 1000).toISOString().slice(0, 10);
}

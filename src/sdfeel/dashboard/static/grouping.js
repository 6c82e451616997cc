// Runs that share a value, with the means of what they reached.

/** @typedef {import("./values.js").Run} Run */
/** @typedef {{name: string, runs: Run[], means: Map<string, {mean: number, least: number, most: number} | string>}} Group */

/**
 * Groups in the order in which their first runs stand.
 * @param {Run[]} runs
 * @param {(run: Run) => any} by
 * @param {string[]} keys
 * @param {(run: Run, key: string) => any} value
 * @returns {Group[]}
 */
export function grouped(runs, by, keys, value) {
  const found = new Map();
  for (const run of runs) {
    const own = by(run);
    const name = own === undefined || own === null || own === "" ? "not set" : String(own);
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(run);
  }
  return [...found].map(([name, members]) => ({ name, runs: members, means: new Map(keys.map((key) => [key, together(members.map((run) => value(run, key)))])) }));
}

/** Several values in short: their mean and range, the one value that all share, or how many different ones there are.
 * @param {any[]} values
 */
export function together(values) {
  const known = values.filter((each) => each !== null && each !== undefined && each !== "");
  if (!known.length) return "";
  if (known.every((each) => typeof each === "number")) {
    return { mean: known.reduce((sum, each) => sum + each, 0) / known.length, least: Math.min(...known), most: Math.max(...known) };
  }
  const kinds = new Set(known.map(String));
  return kinds.size === 1 ? String(known[0]) : `${kinds.size} different`;
}

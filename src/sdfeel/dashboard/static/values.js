// The value of any key of a run: what the list knows, a metric of the run's own, or a key of its experiment.

import { ask } from "./live.js";
import { resolve } from "./query.js";

/** @typedef {Record<string, any> & {name: string, metrics: Record<string, number>, tags: string[]}} Run */

export const OWN = ["name", "scheme", "state", "accuracy", "seconds", "iterations", "bytes", "joules", "seed", "kind", "modified", "loss", "test_loss", "spread", "tags", "note", "folder", "reason"];
const own = new Set(OWN);

/** @type {Map<string, Map<string, any>> | null} the experiments, once something needs them */
let asked = null;
/** @type {Map<string, string>} tau1: scheme.tau1 */
const meant = new Map();

const metric = (/** @type {Run} */ run, /** @type {string} */ key) => Object.hasOwn(run.metrics ?? {}, key);

async function fetchKeys() {
  const found = await ask("/api/keys");
  asked = new Map(Object.entries(found).map(([name, keys]) => [name, new Map(Object.entries(keys))]));
}

/**
 * Load what these keys need, so that `value` knows them; an error names a key that no run has.
 * @param {Iterable<string>} keys
 * @param {Iterable<Run>} runs
 */
export async function prepare(keys, runs) {
  const all = [...runs];
  const others = [...keys].filter((key) => !own.has(key) && !all.some((run) => metric(run, key)));
  if (!others.length) return;
  if (!asked || all.some((run) => !asked?.has(run.name))) await fetchKeys();
  const names = new Set([.../** @type {any} */ (asked).values()].flatMap((each) => [...each.keys()]));
  for (const key of others) meant.set(key, resolve(names, key));
}

/**
 * A number, a word, true or false, or undefined.
 * @param {Run} run
 * @param {string} key
 */
export function value(run, key) {
  if (key === "tags") return run.tags.join(", ");
  if (own.has(key)) return run[key];
  if (metric(run, key)) return run.metrics[key];
  return asked?.get(run.name)?.get(meant.get(key) ?? key);
}

/**
 * All keys that these runs have a value of.
 * @param {Run[]} runs
 * @returns {Promise<string[]>}
 */
export async function everyKey(runs) {
  if (!asked || runs.some((run) => !asked?.has(run.name))) await fetchKeys();
  const found = new Set(OWN);
  for (const run of runs) {
    Object.keys(run.metrics ?? {}).forEach((key) => found.add(key));
    asked?.get(run.name)?.forEach((_, key) => found.add(key));
  }
  return [...found];
}

/**
 * The keys of experiments in which these runs differ, in their order.
 * @param {Run[]} runs
 * @returns {Promise<string[]>}
 */
export async function differing(runs) {
  await everyKey(runs);
  const seen = new Map();
  for (const run of runs) asked?.get(run.name)?.forEach((each, key) => seen.set(key, (seen.get(key) ?? new Set()).add(each)));
  return [...seen].filter(([, values]) => values.size > 1).map(([key]) => key);
}

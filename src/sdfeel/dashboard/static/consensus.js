// How far servers are from agreeing: what was measured, next to what the graph alone would do.

import { h } from "./dom.js";
import { count, percent, significant } from "./format.js";

/** @typedef {{seconds: number, spread: number | null, mixings: number, distances: (number | null)[], farthest?: [number, number][]}} Frame */

/**
 * @param {{zeta: number, frames: Frame[], sampled: boolean}} data
 * @param {number} index of the moment
 */
export function consensus(data, index) {
  const [frame, before] = [data.frames[index], data.frames[index - 1]];
  const lines = [];
  if (frame.spread !== null) lines.push(h("p", {}, "Measured spread: ", h("b", {}, significant(frame.spread)), "."));
  if (before?.spread && frame.mixings && frame.spread !== null) {
    const left = before.spread * data.zeta ** frame.mixings;
    const times = `${data.sampled ? "about " : ""}${count(frame.mixings)} mixing${frame.mixings === 1 ? "" : "s"}`;
    lines.push(h("p", { class: "soft" }, `Without training, ${times} since the previous moment would have left at most ${significant(left)} (ζ = ${significant(data.zeta)}: each leaves at most ${percent(Math.min(1, data.zeta))}). The rest is what clients' training has added.`));
  }
  const far = farthest(data.frames, index);
  if (far) lines.push(h("p", { class: "soft" }, `Farthest from the mean: server ${far.server}, in ${percent(far.share)} of the moments so far.`));
  return h("div", { class: "consensus" }, h("h3", {}, "Consensus"), lines);
}

/** The server that was most often the farthest.
 * @param {Frame[]} frames
 * @param {number} index
 */
export function farthest(frames, index) {
  const times = new Map();
  let all = 0;
  for (const { distances, farthest } of frames.slice(0, index + 1)) {
    const known = distances.map((each) => each ?? -1);
    const most = Math.max(...known);
    if (!(most > 0)) continue;
    all += 1;
    const server = farthest ? farthest[0][0] : known.indexOf(most); // groups say which of their servers it is
    times.set(server, (times.get(server) ?? 0) + 1);
  }
  if (!all) return null;
  const [server, count] = [...times].sort((a, b) => b[1] - a[1])[0];
  return { server, share: count / all };
}

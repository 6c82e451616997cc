// Axes of our own pictures: from values to places, with round ticks.

import { significant } from "./format.js";

const plain = (/** @type {number} */ value) => (Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? significant(value) : String(+value.toPrecision(3)));

/** @typedef {{place: (value: any) => number | null, ticks: {at: number, text: string}[]}} Scale */

/**
 * Numbers from `begin` to `end` (pixels), on a logarithmic axis where they span more than a factor of 100.
 * @param {number[]} values
 * @param {number} begin
 * @param {number} end
 * @param {(value: number) => string} [text]
 * @param {number} [apart] pixels between two ticks, about
 * @returns {Scale}
 */
export function numbers(values, begin, end, text = plain, apart = 44) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  const log = low > 0 && high > 100 * low;
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const [from, to] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
  const place = (/** @type {any} */ value) => {
    if (typeof value !== "number" || (log && value <= 0)) return null;
    return begin + (((log ? Math.log10(value) : value) - from) / (to - from)) * (end - begin);
  };
  const whole = values.every(Number.isInteger);
  const found = log ? decades(from, to) : rounds(from, to, Math.max(2, Math.abs(end - begin) / apart));
  return { place, ticks: found.filter((each) => !whole || Number.isInteger(each)).map((value) => ({ at: /** @type {number} */ (place(value)), text: text(value) })) };
}

const decades = (/** @type {number} */ from, /** @type {number} */ to) => {
  const step = Math.max(1, Math.ceil((to - from) / 6));
  return [...Array(Math.floor(to) - Math.ceil(from) + 1).keys()].filter((each) => each % step === 0).map((each) => 10 ** (Math.ceil(from) + each));
};

/** Round numbers from one to another, about so many.
 * @param {number} from @param {number} to @param {number} about */
export function rounds(from, to, about) {
  const rough = (to - from) / about;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * size).find((each) => each >= rough) ?? rough;
  const found = [];
  for (let value = Math.ceil(from / step - 1e-9) * step; value <= to + step * 1e-9 && found.length < 50; value += step) found.push(+value.toPrecision(12));
  return found;
}

/**
 * Words at equal distances, in their order.
 * @param {any[]} values
 * @param {number} begin
 * @param {number} end
 * @returns {Scale}
 */
export function words(values, begin, end) {
  const names = [...new Set(values.map(String))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const at = (/** @type {number} */ index) => (names.length === 1 ? (begin + end) / 2 : begin + (index / (names.length - 1)) * (end - begin));
  const places = new Map(names.map((name, index) => [name, at(index)]));
  const step = Math.ceil(names.length / Math.max(2, Math.abs(end - begin) / 16));
  return { place: (value) => places.get(String(value)) ?? null, ticks: names.map((name, index) => ({ at: at(index), text: name.length > 18 ? `${name.slice(0, 17)}…` : name })).filter((_, index) => index % step === 0) };
}

/** @param {any[]} values @param {number} begin @param {number} end @param {(value: number) => string} [text] */
export const scaleFor = (values, begin, end, text) => (values.every((each) => typeof each === "number") ? numbers(values, begin, end, text) : words(values, begin, end));

/**
 * Draw for the width that there is, and again when it changes.
 * @param {HTMLElement} element
 * @param {(width: number) => void} draw
 */
export function fitting(element, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (!element.clientWidth || element.clientWidth === width) return;
    width = element.clientWidth;
    draw(width);
  }).observe(element);
  return () => { if (element.clientWidth) draw((width = element.clientWidth)); };
}

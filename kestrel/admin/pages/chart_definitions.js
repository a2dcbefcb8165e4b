// What the large charts show, of a queue or of all.

import { makeChart, STEPS_OF_BYTES, STEPS_OF_TENTHS, STEPS_OF_WHOLE_NUMBERS } from "./charts.js";
import * as format from "./format.js";

/** How many items there are. */
export function itemsChart() {
  return makeChart({
    title: "Items",
    series: [{ key: "items", label: "", colour: "items", fill: "items-fill" }],
    format: format.count,
    axisFormat: format.compact,
    steps: STEPS_OF_WHOLE_NUMBERS,
  });
}

/** How many are put and fetched each second. */
export function ratesChart() {
  return makeChart({
    title: "Puts and gets per second",
    series: [
      { key: "puts", label: "puts", colour: "puts" },
      { key: "gets", label: "gets", colour: "gets" },
    ],
    format: format.rate,
    axisFormat: format.compact,
    steps: STEPS_OF_TENTHS,
  });
}

/** How large the items are together. */
export function bytesChart() {
  return makeChart({
    title: "Bytes",
    series: [{ key: "bytes", label: "", colour: "items", fill: "items-fill" }],
    format: format.bytes,
    steps: STEPS_OF_BYTES,
  });
}

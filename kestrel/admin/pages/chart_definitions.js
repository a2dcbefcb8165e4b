// The large charts of a queue or of the server.

import { makeChart, STEPS_OF_BYTES, STEPS_OF_TENTHS, STEPS_OF_WHOLE_NUMBERS } from "./charts.js";
import * as format from "./format.js";

/** Return a chart of the number of items. */
export function itemsChart() {
  return makeChart({
    title: "Items",
    series: [{ key: "items", label: "", colour: "items", fill: "items-fill" }],
    format: format.count,
    axisFormat: format.compact,
    steps: STEPS_OF_WHOLE_NUMBERS,
  });
}

/** Return a chart of puts and gets per second. */
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

/** Return a chart of the total size of the items. */
export function bytesChart() {
  return makeChart({
    title: "Bytes",
    series: [{ key: "bytes", label: "", colour: "items", fill: "items-fill" }],
    format: format.bytes,
    steps: STEPS_OF_BYTES,
  });
}

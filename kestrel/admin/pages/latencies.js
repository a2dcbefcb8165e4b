// The table of latencies and sizes.

import { element, setText } from "./dom.js";
import * as format from "./format.js";

const ROWS = [
  ["set_latency_usec", "Put", format.microseconds],
  ["get_hit_latency_usec", "Get that found an item", format.microseconds],
  ["get_miss_latency_usec", "Get that found no item", format.microseconds],
  ["get_timeout_msec", "Get that timed out", format.duration],
  ["delivery_latency_msec", "From put to get", format.duration],
  ["request_size", "Size of a put item", format.bytes],
  ["fill_readbehind_usec", "Reading items back into memory", format.microseconds],
  ["journal_rewrite_usec", "Rewriting a journal", format.microseconds],
  ["journal_rotation_usec", "Rotating a journal", format.microseconds],
  ["fsync_delay_usec", "Fsync delay", format.microseconds],
];

const COLUMNS = [
  ["average", "Average"],
  ["p50", "p50"],
  ["p90", "p90"],
  ["p99", "p99"],
  ["p999", "p999"],
  ["maximum", "Max"],
];

function formatOf(key) {
  if (key.endsWith("_usec")) return format.microseconds;
  if (key.endsWith("_msec")) return format.duration;
  return format.count;
}

function makeTable(rows) {
  const titles = ["Operation", "Count", ...COLUMNS.map(([, label]) => label)];
  const top = element("tr", {}, ...titles.map((textContent) => element("th", { scope: "col", textContent })));
  const body = rows.map(([key, label]) =>
    element(
      "tr",
      {},
      element("th", { scope: "row", textContent: label, title: key }),
      ...titles.slice(1).map(() => element("td")),
    ),
  );
  return element(
    "table",
    { className: "latencies" },
    element("caption", { className: "unseen", textContent: "Latencies and sizes" }),
    element("thead", {}, top),
    element("tbody", {}, ...body),
  );
}

/** Show the table of `latencies` in `holder`. A histogram without values gets dashes. */
export function showLatencies(holder, latencies) {
  const known = ROWS.filter(([key]) => key in latencies);
  const others = Object.keys(latencies).filter((key) => !ROWS.some(([known]) => known === key));
  const rows = [...known, ...others.map((key) => [key, key.replaceAll("_", " "), formatOf(key)])];
  const signature = rows.map(([key]) => key).join(" ");
  if (holder.dataset.rows !== signature) {
    holder.dataset.rows = signature;
    holder.replaceChildren(makeTable(rows));
  }
  rows.forEach(([key, , formatted], index) => {
    const row = holder.querySelectorAll("tbody tr")[index];
    const told = latencies[key];
    setText(row.cells[1], format.count(told.count));
    row.classList.toggle("none", !told.count);
    COLUMNS.forEach(([column], number) => setText(row.cells[number + 2], formatted(told.count ? told[column] : null)));
  });
}

// Lists of statistics and settings: labels and values in a `dl`.

import { element, setText } from "./dom.js";
import * as format from "./format.js";

const seconds = (value) => format.duration(value * 1000);

/** Labels and formats of known statistics. Unknown ones get a label and a format derived from their names. */
const KNOWN = {
  items: ["Items", format.count],
  bytes: ["Bytes", format.bytes],
  total_items: ["Items put since the server started", format.count],
  logsize: ["Journal", format.bytes],
  journal_bytes: ["Journal, all files", format.bytes],
  expired_items: ["Items expired", format.count],
  mem_items: ["Items in memory", format.count],
  mem_bytes: ["Bytes in memory", format.bytes],
  age: ["Last wait, by Kestrel's name", format.duration],
  age_msec: ["Last wait", format.duration],
  oldest_age_msec: ["Oldest item", format.duration],
  discarded: ["Items discarded", format.count],
  waiters: ["Clients waiting", format.count],
  open_transactions: ["Open reads", format.count],
  transactions: ["Reads opened", format.count],
  canceled_transactions: ["Reads aborted", format.count],
  total_flushes: ["Flushes", format.count],
  journal_rewrites: ["Journal rewrites", format.count],
  journal_rotations: ["Journal rotations", format.count],
  create_time: ["Opened", format.dateAndTime],
  delayed_items: ["Items with a delay", format.count],
  moved_items: ["Items moved to other queues", format.count],
  refused_moves: ["Moves refused", format.count],
  put_items: ["Items put", format.count],
  put_bytes: ["Bytes put", format.bytes],
  get_items_hit: ["Items taken", format.count],
  get_items_miss: ["Gets that found no item", format.count],
  curr_items: ["Items", format.count],
  curr_connections: ["Connections", format.count],
  total_connections: ["Connections since the server started", format.count],
  rejected_connections: ["Connections refused", format.count],
  foreign_requests: ["Requests in other protocols", format.count],
  cmd_get: ["Gets", format.count],
  cmd_set: ["Puts", format.count],
  cmd_peek: ["Peeks", format.count],
  get_hits: ["Gets that found an item", format.count],
  get_misses: ["Gets that found no item", format.count],
  bytes_read: ["Bytes from clients", format.bytes],
  bytes_written: ["Bytes to clients", format.bytes],
  queue_creates: ["Queues opened", format.count],
  queue_deletes: ["Queues deleted", format.count],
  queue_expires: ["Queues expired", format.count],
  reserved_memory_ratio: ["Memory reserved by queues, as a fraction of the machine's", String],
  uptime: ["Uptime", seconds],
  time: ["The server's clock", (value) => format.dateAndTime(value * 1000)],
  version: ["Version", String],
  build: ["Build", String],
};

const BY_ENDING = [
  ["_bytes", format.bytes],
  ["_msec", format.duration],
  ["_usec", format.microseconds],
];

function formatOf(key) {
  return KNOWN[key]?.[1] ?? BY_ENDING.find(([ending]) => key.endsWith(ending))?.[1] ?? format.count;
}

/** Return the value of the statistic `key`, formatted. */
export function figureText(key, value) {
  return typeof value === "number" ? formatOf(key)(value) : String(value);
}

function figureLabel(key) {
  const words = key.replaceAll("_", " ");
  return KNOWN[key]?.[0] ?? words[0].toUpperCase() + words.slice(1);
}

/** Show labels and texts in a `dl`. If the keys are unchanged, only the texts are updated. */
export function showTerms(list, terms) {
  const isSame =
    list.children.length === terms.length &&
    terms.every(({ key }, index) => list.children[index].dataset.key === key);
  if (!isSame) {
    list.replaceChildren(
      ...terms.map(({ key, label, title }) => {
        const term = element("dt", { textContent: label, title: title ?? "" });
        const made = element("div", {}, term, element("dd"));
        made.dataset.key = key;
        return made;
      }),
    );
  }
  terms.forEach(({ text }, index) => setText(list.children[index].lastElementChild, text));
}

/** Show all statistics. The tooltip of each label is the name of the statistic. */
export function showFigures(list, figures) {
  const terms = Object.entries(figures)
    .filter(([key]) => key !== "children" && !(key === "age" && "age_msec" in figures))
    .map(([key, value]) => ({ key, label: figureLabel(key), title: key, text: figureText(key, value) }));
  showTerms(list, terms);
}

/** Show settings by their names in the configuration file. */
export function showSettings(list, settings) {
  const terms = Object.entries(settings).map(([key, value]) => ({ key, label: key, text: String(value) }));
  showTerms(list, terms);
}

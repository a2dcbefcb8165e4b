// The queues as objects, from the rows that the server sends, and their rates.

import { Rates } from "./rates.js";

const rates = new Rates();

/** What an overview tells, with the rates of the server (key "") and of each queue put in. */
export function readOverview({ server, columns, queues }) {
  const rows = queues.map((values) => Object.fromEntries(columns.map((column, index) => [column, values[index]])));
  const counters = new Map(rows.map((row) => [row.name, [row.put_items, row.get_items_hit, row.get_items_miss]]));
  counters.set("", [server.figures.cmd_set, server.figures.get_hits]);
  rates.add(server.uptime_ms, server.time_ms, counters);
  for (const row of rows) {
    const [puts, gets, misses] = rates.of(row.name);
    Object.assign(row, { puts, gets, misses });
  }
  const [puts, gets] = rates.of("");
  return { server, queues: rows, puts, gets };
}

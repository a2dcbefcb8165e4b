// The queues of an overview as objects with their rates, from the rows that the server sends.

import { Rates } from "./rates.js";

const rates = new Rates();

/** Return an overview with its queues as objects, and with rates of puts and gets added to each and to the server. */
export function readOverview({ server, columns, queues, ...details }) {
  const rows = queues.map((values) => Object.fromEntries(columns.map((column, index) => [column, values[index]])));
  const counters = new Map(rows.map((row) => [row.name, [row.put_items, row.get_items_hit, row.get_items_miss]]));
  counters.set("", [server.figures.cmd_set, server.figures.get_hits]);
  rates.add(server.uptime_ms, server.time_ms, counters);
  for (const row of rows) {
    const [puts, gets, misses] = rates.of(row.name);
    Object.assign(row, { puts, gets, misses });
  }
  const [puts, gets] = rates.of("");
  return { ...details, server, queues: rows, puts, gets };
}

// The first page: charts of the server's last hour, and the table of queues.

import * as api from "./api.js";
import { itemsChart, ratesChart } from "./chart_definitions.js";
import { byId } from "./dom.js";
import { queueAddress } from "./queue_names.js";
import { makeTable } from "./queue_table.js";
import { makeTimeRangePicker } from "./time_range.js";

const WAIT_FOR_SCROLLING_MS = 120;

export function makeOverview() {
  const section = byId("overview");
  const items = itemsChart();
  const rates = ratesChart();
  byId("overview-charts").append(items.figure, rates.figure);
  byId("overview-charts").before(makeTimeRangePicker());

  let nextHistoryAt = 0;
  let nextSparksAt = 0;
  let timer = null;

  const table = makeTable({
    open: (name) => {
      table.activate(name);
      location.hash = queueAddress(name);
    },
    onSeen: () => {
      nextSparksAt = 0;
      clearTimeout(timer);
      // An error is ignored, since the next refresh of the page reports it.
      timer = setTimeout(() => refreshSparks().catch(() => {}), WAIT_FOR_SCROLLING_MS);
    },
  });

  async function refreshHistory() {
    if (performance.now() < nextHistoryAt) return;
    const history = await api.serverHistory();
    nextHistoryAt = performance.now() + history.step_ms;
    items.update(history, history.series[""]);
    rates.update(history, history.series[""]);
  }

  async function refreshSparks() {
    const names = table.seenNames();
    if (performance.now() < nextSparksAt || !names.length) return;
    nextSparksAt = Infinity;
    try {
      const history = await api.histories(names);
      table.updateSparks(history.series);
      nextSparksAt = Math.min(nextSparksAt, performance.now() + (history.step_ms ?? 0));
    } catch (error) {
      nextSparksAt = 0;
      throw error;
    }
  }

  return {
    section,
    title: () => null,
    query: () => "",
    show({ isBack }) {
      section.hidden = false;
      table.setActive(true);
      if (isBack) table.focus();
    },
    hide() {
      table.setActive(false);
      section.hidden = true;
    },
    async refresh({ queues }) {
      table.update(queues);
      await Promise.all([refreshHistory(), refreshSparks()]);
    },
  };
}

// The page of one queue: charts, statistics, settings, latencies, and buttons for administrators.

import * as api from "./api.js";
import { allow } from "./buttons.js";
import { CHANGE_BUTTONS, makeChangePart } from "./change_part.js";
import { bytesChart, itemsChart, ratesChart } from "./chart_definitions.js";
import { confirmAndSend } from "./confirm_dialog.js";
import { byId, element, nameElement, setText } from "./dom.js";
import * as format from "./format.js";
import { makeItemsPart } from "./items_part.js";
import { showLatencies } from "./latencies.js";
import { connectionsAddress, queueAddress } from "./queue_names.js";
import { showFigures, showSettings } from "./stats_list.js";
import { makeTimeRangePicker } from "./time_range.js";

const BUTTONS = ["queue-flush-expired", "queue-flush", "queue-delete", "queue-look", ...CHANGE_BUTTONS];
const FACTS = [
  ["items", format.count],
  ["bytes", format.bytes],
  ["puts", format.rate],
  ["gets", format.rate],
  ["oldest_age_msec", format.duration],
  ["age_msec", format.duration],
  ["waiters", format.count],
  ["open_transactions", format.count],
];

export function makeQueuePage({ refreshNow }) {
  const section = byId("queue");
  const charts = [itemsChart(), ratesChart(), bytesChart()];
  byId("queue-charts").append(...charts.map(({ figure }) => figure));
  byId("queue-charts").before(makeTimeRangePicker());
  const itemsPart = makeItemsPart();
  const changePart = makeChangePart({ refreshNow });

  let name = null;
  let items = 0;
  let nextHistoryAt = 0;

  byId("queue-flush").addEventListener("click", async () => {
    const flushed = name;
    const question = {
      title: `Flush ${name}?`,
      lines: [
        items
          ? `${capital(format.allOf(items, "item"))} of ${name} will be deleted.`
          : `${name} is currently empty.`,
        "Items that are put before the flush will be deleted as well. They cannot be restored.",
      ],
      action: items ? `Delete ${format.allOf(items, "item")}` : "Flush",
    };
    await confirmAndSend(question, () => api.flush(flushed));
    refreshNow();
  });

  byId("queue-flush-expired").addEventListener("click", async () => {
    const flushed = name;
    const question = {
      title: `Flush the expired items of ${name}?`,
      lines: [
        `Expired items of ${name} will be deleted, or moved to the queue that its settings name.`,
        "All other items stay in the queue.",
      ],
      action: "Flush expired items",
    };
    await confirmAndSend(question, () => api.flushExpired(flushed));
    refreshNow();
  });

  byId("queue-delete").addEventListener("click", async () => {
    const deleted = name;
    const question = {
      title: `Delete ${name}?`,
      lines: [
        items
          ? `The queue ${name} and ${format.allOf(items, "item")} in it will be deleted.`
          : `The queue ${name} will be deleted. It is currently empty.`,
        "Its journal and its statistics will be deleted as well. They cannot be restored.",
      ],
      action: items ? `Delete it with ${format.allOf(items, "item")}` : "Delete it",
    };
    const isDone = await confirmAndSend(question, () => api.deleteQueue(deleted));
    if (isDone && name === deleted && !section.hidden) {
      location.hash = "#/";
    } else {
      refreshNow();
    }
  });

  function showThere(isIt, sentence = "") {
    byId("queue-there").hidden = !isIt;
    byId("queue-buttons").hidden = !isIt;
    if (!isIt) byId("queue-reason").hidden = true;
    byId("queue-gone").hidden = isIt || !sentence;
    setText(byId("queue-gone-text"), sentence);
  }

  function showChildren(children) {
    byId("queue-children-part").hidden = !children.length;
    byId("queue-children").replaceChildren(
      ...children.map((child) =>
        element("li", {}, element("a", { href: queueAddress(child) }, nameElement(child))),
      ),
    );
  }

  function showQueue(queue, { server, queues }) {
    const row = queues.find((each) => each.name === name);
    items = row?.items ?? queue.figures.items ?? 0;
    for (const [key, formatted] of FACTS) {
      setText(byId(`queue-${key}`), formatted(row?.[key] ?? queue.figures[key] ?? null));
    }
    setText(byId("queue-failure"), queue.failure ?? "");
    byId("queue-failure").hidden = !queue.failure;
    showFigures(byId("queue-figures"), queue.figures);
    showSettings(byId("queue-settings"), queue.settings);
    showLatencies(byId("queue-latencies"), queue.latencies);
    const signature = queue.children.join(" ");
    if (byId("queue-children").dataset.names !== signature) {
      byId("queue-children").dataset.names = signature;
      showChildren(queue.children);
    }
    byId("queue-items-part").hidden = !server.peek;
    byId("queue-clients").href = connectionsAddress(name);
    changePart.show(queue.move, queues);
    allow(BUTTONS.map(byId), byId("queue-reason"), server);
    showThere(true);
  }

  async function refreshHistory(asked) {
    if (performance.now() < nextHistoryAt) return;
    const history = await api.histories([asked]);
    if (asked !== name) return;
    nextHistoryAt = performance.now() + history.step_ms;
    charts.forEach((chart) => chart.update(history, history.series[asked]));
  }

  return {
    section,
    title: () => `${name} – Kestrel`,
    query: () => api.queueQuery(name),
    show({ argument }) {
      if (argument !== name) {
        name = argument;
        nextHistoryAt = 0;
        showThere(false);
        itemsPart.use(name);
        changePart.use(name);
      }
      byId("queue-title").replaceChildren(nameElement(name));
      section.hidden = false;
    },
    hide() {
      section.hidden = true;
    },
    async refresh(overview) {
      if (overview.queue.error) {
        showThere(false, overview.queue.error);
        return;
      }
      showQueue(overview.queue, overview);
      await refreshHistory(name);
    },
  };
}

function capital(sentence) {
  return sentence[0].toUpperCase() + sentence.slice(1);
}

// The page of connected clients: their open reads and traffic, and the queues that they wait for.

import * as api from "./api.js";
import { byId, element, nameElement, setText } from "./dom.js";
import * as format from "./format.js";
import { queueAddress } from "./queue_names.js";

const COLUMNS = [
  { key: "address", label: "Client" },
  { key: "protocol", label: "Protocol" },
  { key: "client", label: "Name", title: "The name in its certificate, or the one that a thrift client claims" },
  { key: "waits_for", label: "Waits for", title: "The queue that it waits for an item of" },
  { key: "open_reads", label: "Open", format: format.briefCount, title: "Open reads" },
  { key: "requests", label: "Requests", format: format.briefCount },
  { key: "bytes_in", label: "Received", format: format.bytes, title: "Bytes from the client" },
  { key: "bytes_out", label: "Sent", format: format.bytes, title: "Bytes that the client has received" },
  { key: "unsent_bytes", label: "Held", format: format.bytes, title: "Bytes of replies that are not sent yet" },
  { key: "silent_msec", label: "Silent", format: format.duration, title: "Time since the client sent its last bytes" },
];

function cell(row, { key, format: formatted }) {
  if (formatted) return element("td", { textContent: formatted(row[key]) });
  if (key === "waits_for" && row[key] !== null) {
    return element("td", { className: "words" }, element("a", { href: queueAddress(row[key]) }, nameElement(row[key])));
  }
  return element("td", { className: "words" }, nameElement(row[key] ?? format.UNKNOWN));
}

export function makeConnectionsPage({ refreshNow }) {
  const section = byId("connections");
  const body = element("tbody");
  const titles = COLUMNS.map(({ label, title, format: formatted }) =>
    element("th", { scope: "col", textContent: label, title: title ?? "", className: formatted ? "" : "words" }),
  );
  byId("connections-list").append(
    element(
      "table",
      { className: "latencies connections" },
      element("caption", { className: "unseen", textContent: "Connections" }),
      element("thead", {}, element("tr", {}, ...titles)),
      body,
    ),
  );
  let queue = null;
  let starts = [0];
  let next = null;

  byId("connections-next").addEventListener("click", () => {
    starts.push(next);
    refreshNow();
  });
  byId("connections-previous").addEventListener("click", () => {
    starts.pop();
    refreshNow();
  });

  function told(rows, connected) {
    if (queue !== null) return `${format.plural(rows.length, "client")} with open reads of ${queue}, or waiting for it`;
    return rows.length === connected
      ? format.plural(connected, "client")
      : `${format.count(rows.length)} of ${format.plural(connected, "client")}`;
  }

  return {
    section,
    title: () => null,
    query: () => "",
    show({ argument }) {
      queue = argument ?? null;
      starts = [0];
      body.replaceChildren();
      byId("connections-all").hidden = queue === null;
      section.hidden = false;
    },
    hide() {
      section.hidden = true;
    },
    async refresh() {
      const asked = queue;
      const answer = await api.connections(starts.at(-1), asked);
      if (asked !== queue) return;
      next = answer.next;
      const rows = answer.connections.map((values) =>
        Object.fromEntries(answer.columns.map((column, index) => [column, values[index]])),
      );
      setText(byId("connections-count"), told(rows, answer.connected));
      body.replaceChildren(...rows.map((row) => element("tr", {}, ...COLUMNS.map((column) => cell(row, column)))));
      byId("connections-previous").hidden = starts.length === 1;
      byId("connections-next").hidden = next === null;
    },
  };
}

// The page of the server: statistics, settings, latencies, and buttons for administrators.

import * as api from "./api.js";
import { allow } from "./buttons.js";
import { confirmAndSend } from "./confirm_dialog.js";
import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";
import { showLatencies } from "./latencies.js";
import { showFigures, showSettings } from "./stats_list.js";
import { STATUSES, statusText } from "./status.js";

const connected = (figures) => `Currently connected: ${format.plural(figures.curr_connections, "client")}.`;

const LINES = {
  Up: () => ["The server will accept all requests."],
  WriteAvoid: () => ["The server will accept all requests, but clients should write to other servers."],
  ReadOnly: ({ figures }) => [
    "The server will refuse puts, flushes and deletes, and disconnect clients that send them.",
    "Clients can still get items.",
    connected(figures),
  ],
  Quiescent: ({ figures }) => [
    "The server will refuse puts and gets, and disconnect clients that send them.",
    "Clients can still close, confirm and abort their open reads.",
    connected(figures),
  ],
};

export function makeServerPage({ refreshNow }) {
  const section = byId("server");
  let server = null;

  const statusButtons = STATUSES.filter(({ name }) => name in LINES).map(({ name, means }) => {
    const button = element(
      "button",
      { type: "button", className: "status-choice" },
      element("span", { className: "status-choice-name", textContent: name }),
      element("span", { className: "status-choice-means", textContent: means }),
    );
    button.dataset.status = name;
    button.setAttribute("aria-describedby", "server-reason");
    button.addEventListener("click", async () => {
      const question = {
        title: `Set the status to ${name}?`,
        lines: [...LINES[name](server), `The status is ${server.status} now.`],
        action: `Set ${name}`,
        isDangerous: name === "ReadOnly" || name === "Quiescent",
      };
      await confirmAndSend(question, () => api.setStatus(name));
      refreshNow();
    });
    return button;
  });
  byId("server-statuses").append(...statusButtons);

  byId("server-reload").addEventListener("click", async () => {
    const question = {
      title: "Reload the configuration?",
      lines: [
        "Changed settings of queues and of the server will take effect.",
        "If the file has an error, no setting changes.",
      ],
      action: "Reload",
      isDangerous: false,
    };
    await confirmAndSend(question, api.reload);
    refreshNow();
  });

  byId("server-shutdown").addEventListener("click", async () => {
    const { figures, storage } = server;
    const isInMemory = storage.startsWith("memory");
    const kept = figures.curr_items ? `The ${format.plural(figures.curr_items, "item")} in its queues` : "Its queues";
    const question = {
      title: `Shut down ${server.name}?`,
      lines: [
        `The server will shut down and disconnect ${format.plural(figures.curr_connections, "client")}.`,
        "This page cannot start it again.",
        isInMemory
          ? `Its queues are only in memory: ${format.allOf(figures.curr_items, "item")} will be lost.`
          : `${kept} will be available after the next start.`,
      ],
      action: "Shut down",
    };
    await confirmAndSend(question, api.shutDown);
    refreshNow();
  });

  function showStatus() {
    setText(byId("server-status"), statusText(server));
    allow([...statusButtons, byId("server-reload"), byId("server-shutdown")], byId("server-reason"), server);
    for (const button of statusButtons) {
      button.ariaPressed = String(button.dataset.status === server.status);
    }
  }

  return {
    section,
    title: () => null,
    query: () => "?server",
    show() {
      section.hidden = false;
    },
    hide() {
      section.hidden = true;
    },
    async refresh(overview) {
      server = overview.server;
      showStatus();
      const { figures, settings, latencies } = overview.details;
      showFigures(byId("server-figures"), figures);
      showSettings(byId("server-settings"), settings);
      showLatencies(byId("server-latencies"), latencies);
      byId("server-told").hidden = false;
    },
  };
}

// The server's page: its figures, settings and latencies, and what can be done to it.

import * as api from "./api.js";
import { askAndSend } from "./confirm_dialog.js";
import { allow } from "./buttons.js";
import { byId, element, setText } from "./dom.js";
import { showFigures, showSettings } from "./stats_list.js";
import * as format from "./format.js";
import { showLatencies } from "./latencies.js";
import { STATUSES, statusText } from "./status.js";

const connected = (figures) => `Connected just now: ${format.plural(figures.curr_connections, "client")}.`;

const LINES = {
  Up: () => ["Everything will be served from now on."],
  WriteAvoid: () => [
    "Everything will be served. Clients that look for a server to write to should choose another one.",
  ],
  ReadOnly: ({ figures }) => [
    "Puts, flushes and deletes will be refused, and whoever tries will be hung up on.",
    "What is in the queues can be taken.",
    connected(figures),
  ],
  Quiescent: ({ figures }) => [
    "Puts and gets will be refused, and whoever tries will be hung up on.",
    "What is open can be closed, confirmed and aborted.",
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
      await askAndSend(question, () => api.setStatus(name));
      refreshNow();
    });
    return button;
  });
  byId("server-statuses").append(...statusButtons);

  byId("server-reload").addEventListener("click", async () => {
    const question = {
      title: "Read the configuration again?",
      lines: [
        "Settings of queues and of the server that changed in the file will hold from now on.",
        "If the file has a mistake, everything stays as it is.",
      ],
      action: "Reload",
      isDangerous: false,
    };
    await askAndSend(question, api.reload);
    refreshNow();
  });

  byId("server-shutdown").addEventListener("click", async () => {
    const { figures, storage } = server;
    const isInMemory = storage.startsWith("memory");
    const kept = figures.curr_items ? `The ${format.plural(figures.curr_items, "item")} in its queues` : "Its queues";
    const question = {
      title: `Shut down ${server.name}?`,
      lines: [
        `The server will stop, and hang up on ${format.plural(figures.curr_connections, "client")}.`,
        "This page cannot start it again.",
        isInMemory
          ? `Its queues are in memory alone: ${format.allOf(figures.curr_items, "item")} will be lost.`
          : `${kept} will be there after the next start.`,
      ],
      action: "Shut down",
    };
    await askAndSend(question, api.shutDown);
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
    show() {
      section.hidden = false;
    },
    hide() {
      section.hidden = true;
    },
    async refresh(overview) {
      server = overview.server;
      showStatus();
      const told = await api.server();
      showFigures(byId("server-figures"), told.figures);
      showSettings(byId("server-settings"), told.settings);
      showLatencies(byId("server-latencies"), told.latencies);
      byId("server-told").hidden = false;
    },
  };
}

// The header of every page: the server's name, status and totals, and whether it responds.

import { byId, setText } from "./dom.js";
import * as format from "./format.js";
import { meaningOf, statusText } from "./status.js";

let lastAnswerMs = null;

function showMeter(meter, value, most) {
  meter.hidden = !most;
  if (!most) return;
  const part = Math.min(1, value / most);
  meter.ariaValueNow = String(Math.round(part * 100));
  meter.ariaValueText = `${format.bytes(value)} of ${format.bytes(most)}`;
  meter.style.setProperty("--part", part ? `max(2px, ${(part * 100).toFixed(1)}%)` : "0");
}

/** Show the totals of the server. */
export function showHeader({ server, puts, gets }) {
  const { figures } = server;
  setText(byId("server-name"), server.name);
  setText(byId("status-text"), statusText(server));
  byId("status").dataset.status = server.status;
  byId("status").title = meaningOf(server.status);
  byId("status").hidden = false;
  const told = {
    items: format.count(figures.curr_items),
    bytes: format.bytes(figures.bytes),
    memory: format.bytes(figures.mem_bytes),
    "memory-most": server.max_total_memory ? `of ${format.bytes(server.max_total_memory)}` : "",
    puts: format.rate(puts),
    gets: format.rate(gets),
    connections: format.count(figures.curr_connections),
    waiters: `${format.plural(figures.waiters, "client")} waiting`,
    uptime: format.duration(server.uptime_ms),
    version: server.version,
    build: server.build,
    storage: server.storage,
  };
  byId("fact-storage").title = server.storage;
  for (const [key, text] of Object.entries(told)) {
    setText(byId(`fact-${key}`), text);
  }
  showMeter(byId("memory-meter"), figures.mem_bytes, server.max_total_memory);
  document.title = `${format.plural(figures.curr_items, "item")} – ${server.name} – Kestrel`;
}

/** Note that the server responded, so the page is up to date. */
export function showAnswer() {
  lastAnswerMs = Date.now();
  document.body.classList.remove("away");
}

/** Hide the banner, because all requests succeeded. */
export function showNoProblem() {
  byId("away").hidden = true;
}

/** Show that the server does not respond and that the page is out of date. */
export function showAway(sentence = null) {
  lastAnswerMs ??= Date.now();
  showProblem(sentence ?? `No response from the server since ${format.clock(lastAnswerMs)}`);
  document.body.classList.add("away");
}

/** Show a banner with a problem; the rest of the page is up to date. */
export function showProblem(sentence) {
  setText(byId("away-text"), `${sentence.replace(/\.$/, "")}; trying again`);
  byId("away").hidden = false;
}

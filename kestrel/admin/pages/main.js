// The dashboard: selects the page by the address and refreshes it from the server.

import * as api from "./api.js";
import { bindColourSchemeButton } from "./colour_scheme.js";
import { makeConnectionsPage } from "./connections_page.js";
import { byId } from "./dom.js";
import { showAnswer, showAway, showHeader, showNoProblem, showProblem } from "./header.js";
import { bindLogin, refused, showLogin } from "./login.js";
import { bindNotice } from "./notice.js";
import { makeOverview } from "./overview_page.js";
import { readOverview } from "./overview_rows.js";
import { poll } from "./polling.js";
import { nameInAddress } from "./queue_names.js";
import { makeQueuePage } from "./queue_page.js";
import { makeServerPage } from "./server_page.js";

const PAUSE_MS = 2_000;
const PAUSE_WITH_MANY_QUEUES_MS = 10_000;
const MANY_QUEUES = 1_000;
const PAUSE_WHILE_MOVING_MS = 500;

let queueCount = 0;
let isMoving = false;
let page = null;
let refreshNow = () => {};

const later = { refreshNow: () => refreshNow() };
const pages = {
  overview: makeOverview(),
  queue: makeQueuePage(later),
  connections: makeConnectionsPage(later),
  server: makeServerPage(later),
};

function wantedPage() {
  const [, kind, argument] = /^#\/(\w*)(?:\/(.+))?$/.exec(location.hash) ?? [];
  if (kind === "queue" && argument) return { wanted: pages.queue, argument: nameInAddress(argument) };
  if (kind === "connections") return { wanted: pages.connections, argument: argument && nameInAddress(argument) };
  if (kind === "server") return { wanted: pages.server };
  return { wanted: pages.overview };
}

function route() {
  const before = page;
  const { wanted, argument } = wantedPage();
  if (before && before !== wanted) before.hide();
  page = wanted;
  page.show({ argument, isBack: before === pages.queue });
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = pages[link.dataset.page] === page;
    link.ariaCurrent = isHere ? "page" : null;
  }
  if (page.title()) document.title = page.title();
  if (before && page !== pages.overview) {
    scrollTo(0, 0);
    page.section.querySelector("h1").focus({ preventScroll: true });
  }
  refreshNow();
}

async function refresh() {
  let isAnswering = false;
  try {
    const query = page.query();
    const overview = readOverview(await api.overview(query));
    isAnswering = true;
    showAnswer();
    queueCount = overview.queues.length;
    isMoving = Boolean(overview.queue?.move?.is_running);
    showHeader(overview);
    showLogin(overview.server);
    document.body.classList.remove("loading");
    if (page.query() === query) await page.refresh(overview); // otherwise another page was opened meanwhile
    if (page.title()) document.title = page.title();
    showNoProblem();
  } catch (error) {
    if (error instanceof api.NoAnswer) {
      showAway();
    } else if (error.status === 401) {
      refused(error.message);
      refreshNow();
    } else if (!(error instanceof api.Refusal)) {
      console.error(error);
      showProblem("This page could not show the server's response");
    } else if (isAnswering) {
      showProblem(error.message);
      return;
    } else {
      showAway(error.message);
    }
    throw error;
  }
}

bindColourSchemeButton(byId("look"));
bindNotice();
bindLogin(later);
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  page.section.querySelector("h1").focus();
});
addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, textarea, select, dialog");
  if (event.key === "/" && !isTyping && page === pages.overview) {
    event.preventDefault();
    byId("filter").focus();
  }
});
addEventListener("hashchange", route);
route();
refreshNow = poll(refresh, () => {
  if (queueCount > MANY_QUEUES) return PAUSE_WITH_MANY_QUEUES_MS;
  return isMoving ? PAUSE_WHILE_MOVING_MS : PAUSE_MS;
});

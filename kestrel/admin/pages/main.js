// The dashboard: selects the page by the address and refreshes it from the server.

import * as api from "./api.js";
import { bindColourSchemeButton } from "./colour_scheme.js";
import { byId } from "./dom.js";
import { showAnswer, showAway, showHeader, showNoProblem, showProblem } from "./header.js";
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

let queueCount = 0;
let page = null;
let refreshNow = () => {};

const later = { refreshNow: () => refreshNow() };
const pages = { overview: makeOverview(), queue: makeQueuePage(later), server: makeServerPage(later) };

function wantedPage() {
  const [, kind, argument] = /^#\/(\w*)(?:\/(.+))?$/.exec(location.hash) ?? [];
  if (kind === "queue" && argument) return { wanted: pages.queue, argument: nameInAddress(argument) };
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
    const overview = readOverview(await api.overview());
    isAnswering = true;
    showAnswer();
    queueCount = overview.queues.length;
    showHeader(overview);
    document.body.classList.remove("loading");
    await page.refresh(overview);
    if (page.title()) document.title = page.title();
    showNoProblem();
  } catch (error) {
    if (error instanceof api.NoAnswer) {
      showAway();
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
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  page.section.querySelector("h1").focus();
});
addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, dialog");
  if (event.key === "/" && !isTyping && page === pages.overview) {
    event.preventDefault();
    byId("filter").focus();
  }
});
addEventListener("hashchange", route);
route();
refreshNow = poll(refresh, () => (queueCount > MANY_QUEUES ? PAUSE_WITH_MANY_QUEUES_MS : PAUSE_MS));

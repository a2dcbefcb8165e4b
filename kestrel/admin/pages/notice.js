// A notice with the result of an action, in a live region.

import { byId, setText } from "./dom.js";

const SHOWN_MS = 10_000;

let timer = null;

/** Show a notice for ten seconds; an error (`isBad`) stays until the user dismisses it. */
export function showNotice(sentence, { isBad = false } = {}) {
  const box = byId("said");
  clearTimeout(timer);
  setText(byId("said-text"), sentence);
  box.classList.toggle("bad", isBad);
  box.classList.add("shown");
  if (!isBad) {
    timer = setTimeout(dismiss, SHOWN_MS);
  }
}

function dismiss() {
  clearTimeout(timer);
  byId("said").classList.remove("shown");
  setText(byId("said-text"), "");
}

export function bindNotice() {
  byId("said-close").addEventListener("click", dismiss);
}

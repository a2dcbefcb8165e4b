// What became of what was asked for: said once, in a live region.

import { byId, setText } from "./dom.js";

const SHOWN_MS = 10_000;

let timer = null;

/** Say what was done for a while; what was not done stays until it is put away. */
export function say(sentence, { isBad = false } = {}) {
  const box = byId("said");
  clearTimeout(timer);
  setText(byId("said-text"), sentence);
  box.classList.toggle("bad", isBad);
  box.classList.add("shown");
  if (!isBad) {
    timer = setTimeout(putAway, SHOWN_MS);
  }
}

function putAway() {
  clearTimeout(timer);
  byId("said").classList.remove("shown");
  setText(byId("said-text"), "");
}

export function bindSay() {
  byId("said-close").addEventListener("click", putAway);
}

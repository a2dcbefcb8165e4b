// Asking before something is done that cannot be taken back.

import { byId, element, setText } from "./dom.js";
import { say } from "./notice.js";

/**
 * Whether the reader wants it, who is told what will happen.
 *
 * `title` is the question, `lines` are sentences, `action` is what the button says that does it.
 */
export function ask({ title, lines, action, isDangerous = true }) {
  const dialog = byId("ask");
  if (dialog.open) return Promise.resolve(false);
  setText(byId("ask-title"), title);
  byId("ask-lines").replaceChildren(...lines.map((line) => element("p", { textContent: line })));
  const button = byId("ask-do");
  setText(button, action);
  button.classList.toggle("danger", isDangerous);
  button.classList.toggle("primary", !isDangerous);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "do"), { once: true });
  });
}

let isBusy = false;

/** Ask, then send, and say what the server answered. Returns whether it was done. */
export async function askAndSend(question, send) {
  if (isBusy) return false;
  isBusy = true;
  try {
    if (!(await ask(question))) return false;
    const { done } = await send();
    say(done);
    return true;
  } catch (error) {
    say(error.message, { isBad: true });
    return false;
  } finally {
    isBusy = false;
  }
}

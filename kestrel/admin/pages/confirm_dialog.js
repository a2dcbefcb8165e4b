// A dialog that asks for confirmation before an action.

import { byId, element, setText } from "./dom.js";
import { showNotice } from "./notice.js";

/**
 * Show the dialog and return whether the user confirmed.
 *
 * `title` is the question, `lines` are sentences about the consequences, `action` is the label of the button that
 * confirms.
 */
export function confirmAction({ title, lines, action, isDangerous = true }) {
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

/** Ask for confirmation, call `send`, and show the server's answer. Return whether the action was done. */
export async function confirmAndSend(question, send) {
  if (isBusy) return false;
  isBusy = true;
  try {
    if (!(await confirmAction(question))) return false;
    const { done } = await send();
    showNotice(done);
    return true;
  } catch (error) {
    showNotice(error.message, { isBad: true });
    return false;
  } finally {
    isBusy = false;
  }
}

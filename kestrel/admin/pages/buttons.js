// Buttons that only administrators may press.

import { setText } from "./dom.js";

/** Enable the buttons for an administrator; otherwise disable them and show the reason in `reasonElement`. */
export function allow(buttons, reasonElement, server) {
  const reason = server.may_administer
    ? ""
    : "You cannot make changes, because you are not an administrator of this server.";
  setText(reasonElement, reason);
  reasonElement.hidden = reason === "";
  for (const button of buttons) {
    button.disabled = reason !== "";
    button.title = reason;
  }
}

// Buttons for administrators: whether they may be pressed, and if not, why.

import { setText } from "./dom.js";

/** Enable the buttons for who may; else say why not, in the element that describes them. */
export function allow(buttons, reasonElement, server) {
  const reason = server.may_administer
    ? ""
    : "You can look, and change nothing: for this server you are not an administrator.";
  setText(reasonElement, reason);
  reasonElement.hidden = reason === "";
  for (const button of buttons) {
    button.disabled = reason !== "";
    button.title = reason;
  }
}

// The forms of a queue's page that put an item and move items to another queue.

import * as api from "./api.js";
import { confirmAndSend } from "./confirm_dialog.js";
import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";
import { bytesOf } from "./item_bytes.js";
import { showNotice } from "./notice.js";

/** The buttons that only administrators may press. */
export const CHANGE_BUTTONS = ["put-do", "move-do", "move-stop"];

function moveText({ to, items, moved, is_running: isRunning, reason, delay }) {
  const told = `${format.count(moved)} of ${format.plural(items, "item")} moved to ${to}`;
  if (delay) return `${told}; waiting: ${delay}`;
  if (reason) return `${told}; ended: ${reason}`;
  return isRunning ? `${told} so far` : told;
}

/** Return the functions that show this part for a queue. `refreshNow` refreshes the page after a change. */
export function makeChangePart({ refreshNow }) {
  let name = null;

  byId("put-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = byId("put-do");
    button.disabled = true;
    try {
      const data = bytesOf(byId("put-data").value, byId("put-format").value);
      const { done } = await api.put(name, data, Math.round(1000 * byId("put-expiry").value));
      byId("put-data").value = "";
      showNotice(done);
    } catch (error) {
      showNotice(error.message, { isBad: true });
    } finally {
      button.disabled = false;
    }
    refreshNow();
  });

  byId("move-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const [from, to, items] = [name, byId("move-to").value, byId("move-items").value];
    const question = {
      title: `Move ${items ? format.plural(Number(items), "item") : "all items"} to ${to}?`,
      lines: [
        `They will be taken from the head of ${from} and put to ${to}, in order.`,
        "No item can be lost. If the server is killed meanwhile, a few items may be in both queues.",
      ],
      action: "Move",
      isDangerous: false,
    };
    await confirmAndSend(question, () => api.move(from, to, items));
    refreshNow();
  });

  byId("move-stop").addEventListener("click", async () => {
    try {
      showNotice((await api.stopMove(name)).done);
    } catch (error) {
      showNotice(error.message, { isBad: true });
    }
    refreshNow();
  });

  return {
    /** Use another queue. */
    use(queue) {
      name = queue;
      byId("put-form").reset();
      byId("move-form").reset();
    },

    /** Show the queue's last move, and the other queues as choices. */
    show(move, queues) {
      const others = queues.map((each) => each.name).filter((each) => each !== name);
      const choices = byId("move-choices");
      const signature = others.join(" ");
      if (choices.dataset.names !== signature) {
        choices.dataset.names = signature;
        choices.replaceChildren(...others.map((value) => element("option", { value })));
      }
      byId("move-state").hidden = move === null;
      byId("move-stop").hidden = !move?.is_running;
      if (move === null) return;
      byId("move-progress").max = Math.max(1, move.items);
      byId("move-progress").value = move.items ? move.moved : 1;
      setText(byId("move-text"), moveText(move));
    },
  };
}

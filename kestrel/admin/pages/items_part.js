// The part of a queue's page that shows its items, a page at a time.

import * as api from "./api.js";
import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";
import { asHex, asText, fromBase64 } from "./item_bytes.js";
import { showNotice } from "./notice.js";

const ITEMS_A_PAGE = 20;

function expiryText(ms) {
  if (ms === null) return "";
  return ms < 0 ? ", expired" : `, expires in ${format.duration(ms)}`;
}

function itemElement(item) {
  const bytes = fromBase64(item.data_base64);
  const text = asText(bytes, item.is_whole);
  const cut = item.is_whole ? "" : `; first ${format.bytes(bytes.length)}`;
  const failed = item.errors ? `, failed ${format.plural(item.errors, "time")}` : "";
  const kind = text === null ? "shown as bytes" : "shown as text";
  const age = `put ${format.duration(item.age_msec)} ago`;
  const told = `${format.bytes(item.bytes)}, ${age}${expiryText(item.expires_msec)}${failed}, ${kind}${cut}`;
  const shown = element("pre", { tabIndex: 0, textContent: text ?? asHex(bytes) });
  shown.classList.toggle("bytes", text === null);
  shown.ariaLabel = "Item";
  shown.role = "region";
  return element("li", {}, element("p", { className: "soft", textContent: told }), shown);
}

function rangeText({ first, items, in_memory: inMemory, total }) {
  if (!total) return "The queue is empty.";
  const range = items.length
    ? `Items ${format.count(first + 1)} to ${format.count(first + items.length)} of ${format.count(total)}.`
    : `No items from number ${format.count(first + 1)} on are in memory.`;
  const onDisk = total - inMemory;
  return onDisk > 0 ? `${range} The last ${format.count(onDisk)} are only on disk and cannot be shown.` : range;
}

/** Return the functions that show this part for a queue. */
export function makeItemsPart() {
  let name = null;
  let first = 0;

  async function show(from) {
    const asked = name;
    try {
      const page = await api.items(asked, from);
      if (asked !== name) return;
      first = from;
      setText(byId("items-range"), rangeText(page));
      byId("items-list").replaceChildren(...page.items.map(itemElement));
      byId("items-list").start = from + 1;
      byId("items-previous").hidden = from === 0;
      byId("items-next").hidden = from + page.items.length >= page.in_memory;
    } catch (error) {
      showNotice(error.message, { isBad: true });
    }
  }

  byId("queue-look").addEventListener("click", () => show(0));
  byId("items-previous").addEventListener("click", () => show(Math.max(0, first - ITEMS_A_PAGE)));
  byId("items-next").addEventListener("click", () => show(first + ITEMS_A_PAGE));

  return {
    /** Use another queue. Its items are shown when the user asks for them. */
    use(queue) {
      name = queue;
      setText(byId("items-range"), "");
      byId("items-list").replaceChildren();
      byId("items-previous").hidden = byId("items-next").hidden = true;
    },
  };
}

// The item at the head of a queue, as text where it is text, else as bytes.

import { element } from "./dom.js";
import * as format from "./format.js";

const BYTES_A_LINE = 16;

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
}

function asText(bytes, isWhole) {
  try {
    // Where the item was cut, so may be its last character.
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes, { stream: !isWhole });
    return /[\p{Cc}\p{Cs}]/u.test(text.replace(/[\t\r\n]/g, "")) ? null : text;
  } catch {
    return null;
  }
}

function asBytes(bytes) {
  const lines = [];
  for (let start = 0; start < bytes.length; start += BYTES_A_LINE) {
    const line = [...bytes.subarray(start, start + BYTES_A_LINE)];
    const digits = line.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const letters = line.map((each) => (each > 0x20 && each < 0x7f ? String.fromCharCode(each) : "·")).join("");
    lines.push(`${start.toString(16).padStart(6, "0")}  ${digits.padEnd(BYTES_A_LINE * 3)} ${letters}`);
  }
  return lines.join("\n");
}

/** Show what is at the head; null is an empty queue. */
export function showHead(holder, head) {
  if (head === null) {
    const textContent = "Nothing is at the head: the queue is empty.";
    holder.replaceChildren(element("p", { className: "soft", textContent }));
    return;
  }
  const bytes = bytesOf(head.data_base64);
  const text = asText(bytes, head.is_whole);
  const cut = head.is_whole ? "" : `; its first ${format.bytes(bytes.length)}`;
  const kind = text === null ? "not text: as bytes" : "as text";
  const said = `${format.bytes(head.bytes)}, put ${format.duration(head.age_msec)} ago, ${kind}${cut}`;
  const shown = element("pre", { tabIndex: 0, textContent: text ?? asBytes(bytes) });
  shown.classList.toggle("bytes", text === null);
  shown.ariaLabel = "The item at the head";
  shown.role = "region";
  holder.replaceChildren(element("p", { className: "soft", textContent: said }), shown);
}

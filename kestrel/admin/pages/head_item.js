// The item at the head of a queue, shown as text if it is valid text, otherwise as bytes.

import { element } from "./dom.js";
import * as format from "./format.js";

const BYTES_A_LINE = 16;

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
}

function asText(bytes, isWhole) {
  try {
    // If the item was cut, its last character may be incomplete.
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

/** Show the head item in `holder`; null means that the queue is empty. */
export function showHead(holder, head) {
  if (head === null) {
    const textContent = "The queue is empty.";
    holder.replaceChildren(element("p", { className: "soft", textContent }));
    return;
  }
  const bytes = bytesOf(head.data_base64);
  const text = asText(bytes, head.is_whole);
  const cut = head.is_whole ? "" : `; first ${format.bytes(bytes.length)}`;
  const kind = text === null ? "shown as bytes" : "shown as text";
  const said = `${format.bytes(head.bytes)}, put ${format.duration(head.age_msec)} ago, ${kind}${cut}`;
  const shown = element("pre", { tabIndex: 0, textContent: text ?? asBytes(bytes) });
  shown.classList.toggle("bytes", text === null);
  shown.ariaLabel = "Head item";
  shown.role = "region";
  holder.replaceChildren(element("p", { className: "soft", textContent: said }), shown);
}

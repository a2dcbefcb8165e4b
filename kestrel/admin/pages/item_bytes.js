// The bytes of items, as text that people read and write.

const BYTES_A_LINE = 16;

/** Return the bytes of valid base64. */
export function fromBase64(base64) {
  return Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
}

/** Return the bytes of a text in the format "text", "hex" or "base64". Throw an Error if it is invalid. */
export function bytesOf(text, format) {
  if (format === "text") return new TextEncoder().encode(text);
  const digits = text.replace(/\s/g, "");
  if (format === "hex") {
    if (!/^(?:[0-9a-f]{2})*$/i.test(digits)) {
      throw new Error("The item is not hexadecimal: write pairs of digits, such as 0a ff.");
    }
    return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
  }
  try {
    return fromBase64(digits);
  } catch {
    throw new Error("The item is not base64.");
  }
}

/** Return the text of UTF-8 bytes without control characters, otherwise null. */
export function asText(bytes, isWhole) {
  try {
    // If the item was cut, its last character may be incomplete.
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes, { stream: !isWhole });
    return /[\p{Cc}\p{Cs}]/u.test(text.replace(/[\t\r\n]/g, "")) ? null : text;
  } catch {
    return null;
  }
}

/** Return lines of offsets, hexadecimal digits and printable characters. */
export function asHex(bytes) {
  const lines = [];
  for (let start = 0; start < bytes.length; start += BYTES_A_LINE) {
    const line = [...bytes.subarray(start, start + BYTES_A_LINE)];
    const digits = line.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const letters = line.map((each) => (each > 0x20 && each < 0x7f ? String.fromCharCode(each) : "·")).join("");
    lines.push(`${start.toString(16).padStart(6, "0")}  ${digits.padEnd(BYTES_A_LINE * 3)} ${letters}`);
  }
  return lines.join("\n");
}

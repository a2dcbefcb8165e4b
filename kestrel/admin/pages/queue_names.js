// A queue's name is bytes. The server and this code show it as UTF-8, with other bytes as \xNN and a backslash as \\.

/** Return the bytes of a shown name, percent-encoded for a path or query of the server. */
export function encodeName(shown) {
  return shown.replace(/\\(?:x([0-9a-f]{2})|\\?)|[^\\]+/g, (part, digits) =>
    digits ? `%${digits}` : encodeURIComponent(part === "\\\\" ? "\\" : part),
  );
}

/** Return the address of a queue's page, which contains the shown name. */
export function queueAddress(shown) {
  return `#/queue/${encodeURIComponent(shown)}`;
}

/** Return the address of the page of the clients that use a queue. */
export function connectionsAddress(shown) {
  return `#/connections/${encodeURIComponent(shown)}`;
}

/** Return the shown name in the address of a queue's page. Percent-encoded bytes may be invalid UTF-8. */
export function nameInAddress(encoded) {
  try {
    return decodeURIComponent(encoded);
  } catch {
    return encoded.replace(/%([0-9a-f]{2})/gi, (_, digits) => `\\x${digits.toLowerCase()}`);
  }
}

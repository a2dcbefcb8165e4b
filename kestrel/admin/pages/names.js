// Names of queues are bytes. In JSON and in this code a name is a string of code points 0 to 255, one for each byte.

/** The name as part of a path or a query. */
export function encodeName(name) {
  return name.replace(/[^A-Za-z0-9_-]/g, (each) => `%${each.charCodeAt(0).toString(16).padStart(2, "0")}`);
}

/** The name that is written so in a path; what is not percent-encoded stands for itself. */
export function decodeName(encoded) {
  return encoded.replace(/%([0-9a-f]{2})/gi, (_, digits) => String.fromCharCode(parseInt(digits, 16)));
}

/** The name for people: as UTF-8 where it is that, else with the bytes that are not ASCII as \xNN. */
export function displayName(name) {
  if (/^[\x21-\x7e]*$/.test(name)) {
    return name;
  }
  try {
    const bytes = Uint8Array.from(name, (each) => each.charCodeAt(0));
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    // What cannot be seen could make two names look alike.
    return text.replace(/[\p{C}\p{Z}]/gu, (each) => `\\u{${each.codePointAt(0).toString(16)}}`);
  } catch {
    return name.replace(/[^\x21-\x7e]/g, (each) => `\\x${each.charCodeAt(0).toString(16).padStart(2, "0")}`);
  }
}

// Making and changing elements. Whatever comes from the server becomes text, never markup.

/** An element with these properties; children are elements or text. */
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** Show the text, touching the document only where it differs. */
export function setText(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

export function byId(id) {
  return document.getElementById(id);
}

/** The name of a queue, kept apart from the direction of the text around it. */
export function nameElement(text) {
  return element("bdi", { className: "name", textContent: text });
}

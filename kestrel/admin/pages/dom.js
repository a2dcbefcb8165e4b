// Functions that create and change elements. Data of the server is inserted as text, never as markup.

/** Return a new element with these properties. Children are elements or text. */
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** Set the text of a node, unless it is the same already. */
export function setText(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

export function byId(id) {
  return document.getElementById(id);
}

/** Return an element with a queue's name, isolated from the direction of the surrounding text. */
export function nameElement(text) {
  return element("bdi", { className: "name", textContent: text });
}

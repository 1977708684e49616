// Elements, and how a page follows its state. Text only ever enters the page as text: nothing here takes HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element: h("p.muted", { title: "…", data: { key: 3 } }, "text", children…).
 *
 * Attributes may be left out. true sets one, false and null leave it out. Children are nodes, texts, lists of them, or
 * nothing (null, false, "").
 */
export const h = (name, ...rest) => made((tag) => document.createElement(tag), name, rest);

/** An element of a drawing. */
export const s = (name, ...rest) => made((tag) => document.createElementNS(SVG, tag), name, rest);

function made(create, name, rest) {
  const [tag, ...classes] = name.split(".");
  const element = create(tag);
  const { data = {}, ...attributes } = rest[0]?.constructor === Object ? rest.shift() : {};
  if (classes.length) element.setAttribute("class", classes.filter(Boolean).join(" "));
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  for (const [key, value] of Object.entries(data)) if (value !== undefined) element.dataset[key] = value;
  element.append(...nodes(rest));
  return element;
}

const nodes = (children) => children.flat(Infinity).filter((child) => child || child === 0);

/** A button that does `data.click`, see `actions` of the views. */
export const button = (name, data, text, attributes) =>
  h(`button.button.${name}`, { type: "button", data, ...attributes }, text);

/**
 * Make the children of `parent` look like `children`, changing as little as possible: what is focused, typed or pressed
 * at the moment stays. Elements with the same data-key are the same; others are if they stand in the same place.
 */
export function render(parent, ...children) {
  const wanted = nodes(children).map((child) => (child instanceof Node ? child : document.createTextNode(child)));
  const keys = new Set(wanted.map(keyOf));
  const held = new Map();
  for (const child of [...parent.childNodes]) {
    const key = keyOf(child);
    if (key && !keys.has(key)) child.remove();
    else if (key) held.set(key, child);
  }
  let place = parent.firstChild;
  for (const node of wanted) {
    const key = keyOf(node);
    const old = key ? held.get(key) : place;
    if (!old || keyOf(old) !== key || old.nodeName !== node.nodeName) {
      parent.insertBefore(node, place);
      continue;
    }
    if (old === place) place = place.nextSibling;
    else parent.insertBefore(old, place);
    follow(old, node);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

const keyOf = (node) => node.dataset?.key;

function follow(old, node) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    // Whether details are open is the business of whoever looks at them.
    if (!node.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of node.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  render(old, ...node.childNodes);
}

/** The element of an id. */
export const at = (id) => document.getElementById(id);

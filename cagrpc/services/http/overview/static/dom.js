// Elements as values, and a document brought up to them: what is the same stays the same element, so that focus, an open
// <details> and the place where somebody reads are kept. Text is only ever text: there is no way to make markup of it.

const SVG = "http://www.w3.org/2000/svg";
const made = new WeakMap(); // node -> the value that it was made of

export function h(tag, attributes, ...children) {
  const { key = null, ...rest } = attributes ?? {};
  return { tag, key, attributes: rest, children: children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false) };
}

/** Make these the children of a node. Focus stays where it is; where its element goes, `instead` has it. */
export function show(node, children, instead) {
  const focused = document.activeElement;
  const within = node.contains(focused);
  patch(node, [children].flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  if (within && document.activeElement !== focused) {
    (focused.isConnected ? focused : instead)?.focus({ preventScroll: true });
  }
}

function patch(parent, children) {
  const known = new Map();
  for (const node of parent.childNodes) {
    const key = made.get(node)?.key ?? null;
    if (key !== null) known.set(key, node);
  }
  let next = parent.firstChild;
  for (const child of children) {
    const node = matching(child, next, known) ?? create(child, parent);
    if (node === next) {
      next = next.nextSibling;
    } else {
      parent.insertBefore(node, next);
    }
    update(node, child);
  }
  while (next !== null) {
    const following = next.nextSibling;
    next.remove();
    next = following;
  }
}

function matching(child, next, known) {
  if (typeof child !== "object") return next?.nodeType === Node.TEXT_NODE ? next : null;
  if (child.key !== null) {
    const found = known.get(child.key);
    known.delete(child.key); // where two have one key, the other is made anew
    return found !== undefined && made.get(found).tag === child.tag ? found : null;
  }
  const before = next === null ? undefined : made.get(next);
  return before !== undefined && before.key === null && before.tag === child.tag ? next : null;
}

function create(child, parent) {
  if (typeof child !== "object") return document.createTextNode("");
  const namespace = child.tag === "svg" ? SVG : parent.namespaceURI;
  const node = document.createElementNS(namespace, child.tag);
  made.set(node, { tag: child.tag, key: child.key, attributes: {} });
  return node;
}

function update(node, child) {
  if (typeof child !== "object") {
    if (node.nodeValue !== String(child)) node.nodeValue = String(child);
    return;
  }
  const before = made.get(node).attributes;
  for (const name of Object.keys(before)) {
    if (!present(child.attributes[name])) node.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(child.attributes)) {
    const text = value === true ? "" : String(value);
    if (present(value) && node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
  made.set(node, child);
  patch(node, child.children);
}

function present(value) {
  return value !== undefined && value !== null && value !== false;
}

// Makes an element's children equal to freshly rendered ones, and keeps the nodes that have not changed: what a reader
// selected stays selected, and the browser lays out only what is new.

import { codeBlockOf } from "./code.js";

// Changes the children of `parent` from index `from` on into `fresh`. Nodes of `fresh` may move into the page.
export function reconcile(parent, from, fresh) {
  let old = parent.childNodes[from] ?? null;
  for (const node of fresh) {
    const next = old?.nextSibling ?? null;
    if (!old) parent.append(node);
    else if (!old.isEqualNode(node) && !patched(old, node)) old.replaceWith(node);
    old = next;
  }
  while (old) {
    const next = old.nextSibling;
    old.remove();
    old = next;
  }
}

function patched(old, node) {
  if (old.nodeType === Node.TEXT_NODE && node.nodeType === Node.TEXT_NODE) {
    if (node.data.startsWith(old.data)) old.appendData(node.data.slice(old.length));
    else old.data = node.data;
    return true;
  }
  const code = codeBlockOf(old);
  if (code) return code.become(codeBlockOf(node));
  if (old.localName === "math" || !old.cloneNode(false).isEqualNode(node.cloneNode(false))) return false;
  reconcile(old, 0, [...node.childNodes]);
  return true;
}

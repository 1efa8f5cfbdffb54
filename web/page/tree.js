// A conversation is a tree: an edited question and another answer begin a branch of their own. Pure functions.
//
// `messages` is a Map from id to { id, parent, role, content, created, … }; the first message has the parent null. What
// the page shows is the path from a first message to the conversation's `leaf`.

export function pathTo(messages, leaf) {
  const path = [];
  for (let message = messages.get(leaf); message; message = messages.get(message.parent)) path.push(message);
  return path.reverse();
}

// Parent id -> its children, oldest first.
export function childrenOf(messages) {
  const children = new Map();
  for (const message of messages.values()) {
    if (!children.has(message.parent)) children.set(message.parent, []);
    children.get(message.parent).push(message);
  }
  for (const siblings of children.values()) siblings.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
  return children;
}

// The end of the newest branch through a message; with null, of the whole conversation.
export function newestLeaf(messages, id) {
  const children = childrenOf(messages);
  let leaf = id;
  while (children.has(leaf)) leaf = children.get(leaf).at(-1).id;
  return leaf;
}

// Finds conversations by their title and by what was said. Pure.

const [BEFORE, AFTER] = [12, 60]; // characters shown around what was found; few before it, since lines are cut at their end

// chat id -> where the words are, or "" if in the title. `words` in lower case.
export function findConversations(chats, messages, words) {
  const found = new Map(chats.filter(({ title }) => title.toLowerCase().includes(words)).map(({ id }) => [id, ""]));
  for (const { chat, content } of messages) {
    const at = found.has(chat) ? -1 : content.toLowerCase().indexOf(words);
    if (at >= 0) found.set(chat, snippet(content, at, words.length));
  }
  return found;
}

function snippet(text, at, length) {
  const begin = Math.max(0, at - BEFORE);
  const end = at + length + AFTER;
  return `${begin > 0 ? "…" : ""}${wholeCharacters(text, begin, end).replace(/\s+/g, " ")}${end < text.length ? "…" : ""}`;
}

// Like slice, without half a character at either end: an emoji is two of JavaScript's units.
export const wholeCharacters = (text, begin, end) => text.slice(begin, end).replace(/^[\udc00-\udfff]|[\ud800-\udbff]$/g, "");

// Takes over the conversations that earlier versions of the page kept in localStorage, one entry each.

import { CHATS, MESSAGES } from "./database.js";
import { names, read, remove } from "./store.js";

const OLD = "triolet.chat.";

// Two tabs may do this at the same time: both write the same records.
export async function migrate(database) {
  for (const name of names()) {
    const old = name.startsWith(OLD) ? read(localStorage, name) : null;
    if (!Array.isArray(old?.messages)) continue;
    const messages = old.messages.map((message, index) => ({
      ...message,
      id: `${old.id}.${index}`,
      chat: old.id,
      parent: index > 0 ? `${old.id}.${index - 1}` : null,
      created: old.updated + index,
      ...(message.state === "streaming" && { state: "stopped" }),
    }));
    const chat = { id: old.id, title: old.title, created: old.updated, updated: old.updated, leaf: messages.at(-1)?.id, settings: {} };
    const stored = await database.put([CHATS, chat], ...messages.map((message) => [MESSAGES, message]));
    if (stored) remove(name);
  }
}

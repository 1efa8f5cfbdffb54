// The conversations as this tab knows them: the list, and the messages of the one that is open. A change is seen here at
// once, then stored, and told to the other tabs, which take it over as it is.
// A running answer is changed by the one tab that writes it (answers.js), so what that one tells is what holds.

import { CHATS, MESSAGES } from "./database.js";
import { listen, tell } from "./tabs.js";
import { newestLeaf } from "./tree.js";

const UNUSED_MS = 86_400_000; // a conversation without a question is forgotten after a day

export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Conversations {
  chats = new Map(); // id -> chat
  messages = new Map(); // id -> message, of the open conversation
  open = null; // its id
  writing = new Map(); // id -> message that this tab writes, whichever conversation is open
  #database;
  #onChange;
  #opening = null;

  // onChange(chat id, message): the message changed; without one, the conversation.
  static async load(database, onChange) {
    const conversations = new Conversations();
    conversations.#database = database;
    conversations.#onChange = onChange;
    for (const chat of await database.chats()) {
      if (chat.title || Date.now() - chat.updated < UNUSED_MS) conversations.chats.set(chat.id, chat);
      else database.remove(chat.id, []);
    }
    if (!database.shared) return conversations; // other tabs keep theirs to themselves
    listen("changed", ({ chat, messages }) => conversations.#take(chat, messages));
    listen("grown", (grown) => conversations.#grow(grown));
    listen("removed", ({ id }) => conversations.#forget(id));
    return conversations;
  }

  // Newest first.
  list() {
    return [...this.chats.values()].filter((chat) => chat.title).sort((a, b) => b.updated - a.updated);
  }

  // False: another conversation was opened meanwhile.
  async show(id) {
    const opening = { id, arrived: new Map() }; // and messages that change while the stored ones are read
    this.#opening = opening;
    const messages = this.chats.has(id) ? await this.#database.messages(id) : [];
    if (this.#opening !== opening) return false;
    this.#opening = null;
    this.open = id;
    this.messages = new Map(messages.map((message) => [message.id, this.writing.get(message.id) ?? message]));
    for (const [id, message] of opening.arrived) this.messages.set(id, message);
    return true;
  }

  // Those of one conversation, or of all.
  async messagesOf(id) {
    return id === this.open ? [...this.messages.values()] : this.#database.messages(id);
  }

  message(id) {
    return this.#database.get(MESSAGES, id);
  }

  // A message as it is now. `writing`: this tab begins to write it.
  take(message, { writing = false } = {}) {
    if (writing) this.writing.set(message.id, message);
    this.#take(null, [message]);
  }

  // Store a conversation's new messages, the last of which becomes its leaf. `fields` change in the conversation.
  async add(chat, messages, fields = {}) {
    const changed = { ...chat, updated: Date.now(), leaf: messages.at(-1)?.id ?? chat.leaf, ...fields };
    this.#take(changed, messages);
    tell("changed", { chat: changed, messages });
    await this.#database.put([CHATS, changed], ...messages.map((message) => [MESSAGES, message]));
  }

  // Nothing happens where another tab has deleted it.
  async change(id, fields) {
    if (!this.chats.has(id)) return;
    this.#take({ ...this.chats.get(id), ...fields }, []);
    const chat = await this.#database.update(CHATS, id, (stored) => ({ ...(stored ?? this.chats.get(id)), ...fields }));
    tell("changed", { chat, messages: [] });
  }

  // A message that this tab writes has changed. Nothing is stored where another tab has deleted it.
  async save(message) {
    this.take(message);
    tell("changed", { messages: [message] });
    await this.#database.update(MESSAGES, message.id, (stored) => stored && structuredClone(message));
  }

  // The same, for text and the scores of tokens added at the end, which are stored by the next `save`.
  grow(message, text, scores = []) {
    const { id, chat, stats, waiting, content } = message;
    tell("grown", { id, chat, stats, waiting, text, scores, at: content.length - text.length });
    this.#onChange(chat, message);
  }

  // Returns { messages, restore() }: what it had, and a function that brings it back.
  async remove(id) {
    const chat = this.chats.get(id);
    this.#forget(id);
    tell("removed", { id });
    const messages = await this.#database.messages(id);
    await this.#database.remove(id, messages.map((message) => message.id));
    const ended = messages.map((message) => (message.state === "streaming" ? { ...message, state: "stopped" } : message));
    return { messages, restore: () => this.add(chat, ended, { updated: chat.updated, leaf: chat.leaf }) };
  }

  #take(chat, messages) {
    if (chat) this.chats.set(chat.id, chat);
    for (const message of messages) {
      if (message.chat === this.#opening?.id) this.#opening.arrived.set(message.id, message);
      if (message.chat === this.open) this.messages.set(message.id, message);
    }
    this.#onChange(chat?.id ?? messages[0].chat);
  }

  #grow({ id, chat, text, scores, at, ...fields }) {
    const message = chat === this.open ? this.messages.get(id) : undefined;
    if (message?.content.length !== at) return; // the next `changed` brings the whole
    Object.assign(message, fields, { content: message.content + text });
    message.scores?.push(...scores);
    this.#onChange(chat, message);
  }

  #forget(id) {
    this.chats.delete(id);
    if (this.open === id) this.messages = new Map();
    this.#onChange(id);
  }
}

// The leaf of a conversation, also where its record names a message that does not exist.
export const leafOf = (chat, messages) => (messages.has(chat.leaf) ? chat.leaf : newestLeaf(messages, null));

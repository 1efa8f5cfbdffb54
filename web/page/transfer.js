// Conversations as files: JSON with every version, which can be imported again, and Markdown of what is shown.

import { newId } from "./conversations.js";

const FORMAT = "triolet-conversations";
const VERSION = 1;
const STATES = ["done", "stopped", "length", "deadline", "stalled", "lost"];

// conversations: [{ chat, messages }]
export function toJson(conversations) {
  const listed = conversations.map(({ chat: { title, created, updated, leaf, settings }, messages }) => ({
    title,
    created,
    updated,
    leaf,
    settings,
    messages: messages.map(({ id, parent, role, content, created: at, state, stats }) => ({ id, parent, role, content, created: at, state, stats })),
  }));
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations: listed }, null, 2);
}

export function toMarkdown(title, path) {
  const parts = path.filter(({ content }) => content).map(({ role, content }) => `## ${role === "user" ? "You" : "Answer"}\n\n${content.trim()}\n`);
  return [`# ${title}\n`, ...parts].join("\n");
}

// The conversations of a file, as copies with ids of their own: an import never changes what is there. Throws an Error
// that says what is wrong with the file.
export function fromJson(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This is not a JSON file.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error("This file is not an export of conversations.");
  if (file.version !== VERSION) throw new Error(`This file has version ${file.version} of the format; this page reads version ${VERSION}.`);
  return file.conversations.map((conversation, index) => imported(conversation, `Conversation ${index + 1}`));
}

function imported(conversation, name) {
  check(isObject(conversation), `${name} is not a conversation.`);
  const { title, created, updated, leaf, settings = {}, messages } = conversation;
  check(typeof title === "string" && title !== "", `${name} has no title.`);
  check(Array.isArray(messages), `${name} has no list of messages.`);
  const known = isObject(settings) && Object.values(settings).every((value) => typeof value === "string");
  check(known, `${name} has settings that are not texts.`);
  const ids = new Map(messages.map((message) => [message?.id, newId()]));
  check(ids.size === messages.length, `${name} has two messages with one id.`);
  const chat = newId();
  const copies = messages.map((message, index) => copy(message, ids, chat, `${name}, message ${index + 1}:`));
  check(reached(copies) === copies.length, `${name} has messages that do not begin anywhere.`);
  const times = { created: time(created), updated: time(updated) };
  return { chat: { id: chat, title: title.slice(0, 200), ...times, leaf: ids.get(leaf) ?? null, settings }, messages: copies };
}

function copy(message, ids, chat, name) {
  check(isObject(message), `${name} it is not a message.`);
  const { id, parent, role, content, created, state, stats } = message;
  check(typeof id === "string", `${name} id is not a text.`);
  check(typeof content === "string", `${name} content is not a text.`);
  check(role === "user" || role === "assistant", `${name} role is neither "user" nor "assistant".`);
  check(parent === null || ids.has(parent), `${name} its parent is not in the file.`);
  const copied = { id: ids.get(id), chat, parent: parent === null ? null : ids.get(parent), role, content, created: time(created) };
  if (role === "user") return copied;
  const tokens = Number.isFinite(stats?.tokens) ? { stats: { tokens: stats.tokens } } : {};
  return { ...copied, state: STATES.includes(state) ? state : "stopped", ...tokens };
}

// How many messages a path from a first one leads to: those in a circle are not among them.
function reached(messages) {
  const children = Map.groupBy(messages, ({ parent }) => parent);
  let [found, level] = [0, children.get(null) ?? []];
  while (level.length > 0) {
    found += level.length;
    level = level.flatMap(({ id }) => children.get(id) ?? []);
  }
  return found;
}

const isObject = (value) => typeof value === "object" && value !== null;
const time = (value) => (Number.isFinite(value) ? value : Date.now());

function check(holds, problem) {
  if (!holds) throw new Error(problem);
}

export function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // the browser may ask where to put it
}

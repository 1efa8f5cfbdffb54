// The list of conversations in the side bar: searching, renaming and deleting them.

import { $, icon, make, place } from "./dom.js";

const PAUSE_MS = 150; // of typing, before it is searched

export class History {
  #actions;
  #chats = [];
  #currentId = "";
  #found = null; // chat id -> where its text has the words; null: nothing is searched
  #nodes = new Map(); // what a line of the list shows, as JSON -> its node
  #renamed = null; // { id, node } of the line where a name is being typed
  #search = 0;

  // actions: open(chat), rename(chat, title), remove(chat) and find(words), which resolves to a Map like #found
  constructor(actions) {
    this.#actions = actions;
    $("search").addEventListener("input", () => {
      clearTimeout(this.#search);
      this.#search = setTimeout(() => this.#find(), PAUSE_MS);
    });
    $("search").addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || $("search").value === "") return;
      event.preventDefault();
      event.stopPropagation(); // it closes the side bar on a narrow screen
      $("search").value = "";
      this.#find();
    });
  }

  show(chats, currentId) {
    this.#chats = chats;
    this.#currentId = currentId;
    if (!chats.some(({ id }) => id === this.#renamed?.id)) this.#renamed = null;
    const nodes = new Map();
    const add = (shown, node) => {
      const key = JSON.stringify(shown);
      nodes.set(key, this.#nodes.get(key) ?? node());
    };
    for (const chat of this.#found === null ? chats : chats.filter(({ id }) => this.#found.has(id))) {
      const period = periodOf(chat.updated);
      const snippet = this.#found?.get(chat.id);
      add([period], () => make("li", "period", period));
      if (chat.id === this.#renamed?.id) nodes.set(chat.id, this.#renamed.node);
      else add([chat.id, chat.title, snippet, chat.id === currentId], () => this.#item(chat, snippet));
    }
    if (this.#found !== null && nodes.size === 0) nodes.set("", make("li", "period", "Nothing found"));
    this.#nodes = nodes;
    place($("history"), [...nodes.values()]); // the focus and a name being typed stay, whatever happens to other lines
  }

  async #find() {
    const words = $("search").value.trim().toLowerCase();
    const found = words === "" ? null : await this.#actions.find(words);
    if (words !== $("search").value.trim().toLowerCase()) return;
    this.#found = found;
    this.show(this.#chats, this.#currentId);
  }

  #item(chat, snippet) {
    const { id, title } = chat;
    const item = make("li", "chat-item");
    item.dataset.current = String(id === this.#currentId);
    const open = make("button", "chat-open", title);
    open.title = title;
    open.dir = "auto";
    if (snippet) open.append(make("span", "snippet", snippet));
    if (id === this.#currentId) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => this.#actions.open(chat));
    open.addEventListener("keydown", (event) => event.key === "F2" && this.#rename(item, chat));
    const rename = make("button", "chat-tool");
    rename.setAttribute("aria-label", `Rename “${title}”`);
    rename.append(icon("pencil"));
    rename.addEventListener("click", () => this.#rename(item, chat));
    const remove = make("button", "chat-tool danger");
    remove.setAttribute("aria-label", `Delete “${title}”`);
    remove.append(icon("trash"));
    remove.addEventListener("click", () => this.#remove(item, chat));
    const tools = make("span", "chat-tools");
    tools.append(rename, remove);
    item.append(open, tools);
    return item;
  }

  async #remove(item, chat) {
    const items = [...$("history").querySelectorAll(".chat-item")];
    const index = items.indexOf(item);
    await this.#actions.remove(chat);
    const left = [...$("history").querySelectorAll(".chat-open")];
    (left[Math.min(index, left.length - 1)] ?? $("new-chat")).focus();
  }

  #rename(item, chat) {
    const input = make("input", "chat-name");
    input.setAttribute("aria-label", "Name of the conversation");
    input.dir = "auto";
    input.maxLength = 200;
    input.value = chat.title;
    const done = () => {
      if (this.#renamed === null) return; // another tab deleted it
      const title = input.value.trim();
      this.#renamed = null;
      if (title && title !== chat.title) this.#actions.rename(chat, title);
      this.show(this.#chats, this.#currentId);
    };
    input.addEventListener("blur", done, { once: true });
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      if (event.key === "Escape") input.value = chat.title;
      const index = [...$("history").children].indexOf(item);
      input.blur();
      $("history").children[index]?.querySelector(".chat-open")?.focus();
    });
    item.replaceChildren(input);
    this.#renamed = { id: chat.id, node: item };
    this.show(this.#chats, this.#currentId); // so that a new node takes its place after it
    input.select();
  }
}

function periodOf(time) {
  const midnight = new Date();
  midnight.setHours(0, 0, 0, 0);
  const days = Math.ceil((midnight.getTime() - time) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return days <= 7 ? "Last seven days" : "Earlier";
}

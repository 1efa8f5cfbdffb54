// The DOM of messages and of the conversation list. Knows how things look; callers pass in what they do.

import { renderMarkdown } from "./markdown.js";

export const $ = (id) => document.getElementById(id);

export function make(tag, className = "", text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

export const iconPath = (name) => `/static/icons.svg#${name}`;

export function icon(name, className = "icon") {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", className);
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", iconPath(name));
  svg.append(use);
  return svg;
}

function button(className, iconName, label, action) {
  const node = make("button", className);
  node.type = "button";
  node.append(icon(iconName), make("span", "", label));
  node.addEventListener("click", action);
  return node;
}

export function userMessage(text) {
  const node = make("article", "message user");
  node.setAttribute("aria-label", "You");
  node.append(make("div", "bubble", text));
  return node;
}

// One answer: its text while it grows, and the line below it. `message` is the stored record and is not changed here.
export class AnswerView {
  constructor(message, { onRetry }) {
    this.message = message;
    this.node = make("article", "message assistant");
    this.node.setAttribute("aria-label", "Answer");
    const body = make("div", "body");
    this.prose = make("div", "prose");
    this.below = make("div", "below");
    this.stats = make("span", "stats");
    const copy = button("small-button", "copy", "Copy", () => copyText(message.content, copy));
    this.copy = copy;
    this.retry = button("small-button last-only", "retry", "Retry", onRetry);
    this.failure = make("div", "failure");
    this.failure.setAttribute("role", "alert");
    this.failureText = make("span");
    this.failure.append(icon("warning"), this.failureText, button("quiet-button", "retry", "Retry", onRetry));
    this.failure.lastChild.firstChild.remove(); // no icon: the word is enough
    this.below.append(copy, this.retry, this.stats);
    body.append(this.prose, this.failure, this.below);
    this.node.append(icon("mark", "mark"), body);
    this.update();
  }

  update() {
    const { content, state, stats, error } = this.message;
    const streaming = state === "streaming";
    renderMarkdown(this.prose, content);
    this.node.setAttribute("aria-busy", String(streaming));
    this.copy.hidden = streaming || !content;
    this.retry.hidden = streaming || state === "failed";
    this.failure.hidden = state !== "failed";
    this.failureText.textContent = error ?? "";
    this.stats.textContent = describe(stats, state);
  }
}

const ENDINGS = {
  stopped: "Stopped",
  length: "Cut at the token limit",
  deadline: "Ended at the time limit",
  stalled: "Ended: this connection was too slow",
};

function describe(stats, state) {
  const parts = [];
  if (ENDINGS[state]) parts.push(ENDINGS[state]);
  if (stats?.tokens) parts.push(`${stats.tokens} ${stats.tokens === 1 ? "token" : "tokens"}`);
  if (stats?.perSecond) parts.push(`${stats.perSecond.toFixed(stats.perSecond < 10 ? 1 : 0)} tokens/s`);
  if (stats?.firstMs !== undefined) parts.push(`first token ${duration(stats.firstMs)}`);
  return parts.join(" · ");
}

const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

export async function copyText(text, node) {
  const label = node.querySelector("span") ?? node;
  const before = label.textContent;
  try {
    await navigator.clipboard.writeText(text);
    label.textContent = "Copied";
  } catch {
    label.textContent = "Copying is not allowed here";
  }
  setTimeout(() => {
    label.textContent = before;
  }, 1500);
}

export function historyList(container, chats, currentId, { onOpen, onDelete }) {
  container.replaceChildren();
  let period = "";
  for (const chat of chats) {
    const itsPeriod = periodOf(chat.updated);
    if (itsPeriod !== period) {
      period = itsPeriod;
      container.append(make("li", "period", period));
    }
    const item = make("li", "chat-item");
    item.dataset.current = String(chat.id === currentId);
    const open = make("button", "chat-open", chat.title);
    open.title = chat.title;
    if (chat.id === currentId) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => onOpen(chat.id));
    const remove = make("button", "chat-delete");
    remove.setAttribute("aria-label", `Delete “${chat.title}”`);
    remove.append(icon("trash"));
    remove.addEventListener("click", () => onDelete(chat));
    item.append(open, remove);
    container.append(item);
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

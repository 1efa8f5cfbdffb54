// The chat page: holds the conversations, sends requests over the socket, and shows each frame as it arrives.

import { askForKey, setUpTheme } from "./frame.js";
import { setUpSettings, setUpSidebar, toast } from "./panels.js";
import { EngineSocket } from "./socket.js";
import { deleteChat, loadChats, loadCurrent, loadKey, newChat, onChatsChanged, saveChat, saveCurrent, saveKey } from "./store.js";
import { $, AnswerView, copyText, historyList, make, userMessage } from "./view.js";

const EXAMPLES = [
  ["Arithmetic", "What is 347 + 285?"],
  ["Counting", "Count down from 12 to 3."],
  ["JSON", "Extract name, age and city as JSON: Mia is 34 years old, lives in Oslo and works as a nurse."],
  ["Story", "Tell me a short story about a red fox called Emma who likes apples."],
  ["Units", "How many centimeters are in 12 meters?"],
  ["Reading", "Tom lives in Rome. Tom has a dog. Anna lives in Paris. Anna has a cat. What pet does Anna have?"],
];
const ENDINGS = { cancelled: "stopped", length: "length", deadline: "deadline", stalled: "stalled" }; // other: "done"
const SAVE_EVERY_MS = 1000; // while an answer grows
const NEAR_END = 80; // pixels: within this distance of the end, the page follows the answer

const running = new Map(); // chat id -> the running answer: { id, message, view, ... }
let chats = loadChats();
let current = chats.find((chat) => chat.id === loadCurrent()) ?? newChat();
let models = [];
let following = true;

setUpTheme();
const closeSidebar = setUpSidebar();
const settings = setUpSettings();
const socket = new EngineSocket(showState);

// Conversations

function show(chat) {
  current = chat;
  saveCurrent(chat.id);
  following = true;
  const views = chat.messages.map((message, index) => {
    if (message.role === "user") return userMessage(message.content);
    if (message.state === "streaming" && !running.has(chat.id)) message.state = "stopped"; // the page was closed meanwhile
    const view = new AnswerView(message, { onRetry: () => retry(chat, index) });
    if (running.get(chat.id)?.message === message) running.get(chat.id).view = view;
    return view.node;
  });
  $("messages").replaceChildren(...views);
  $("welcome").hidden = chat.messages.length > 0;
  document.title = chat.title ? `${chat.title} – Triolet` : "Triolet";
  showHistory();
  showComposer();
  showContext();
  scrollToEnd();
}

function showHistory() {
  historyList($("history"), chats, current.id, {
    onOpen: (id) => {
      show(chats.find((chat) => chat.id === id));
      closeSidebar();
      $("prompt").focus();
    },
    onDelete: remove,
  });
}

function remove(chat) {
  running.get(chat.id)?.stop();
  deleteChat(chat.id);
  chats = chats.filter((other) => other.id !== chat.id);
  if (chat.id === current.id) show(newChat());
  else showHistory();
  toast("Conversation deleted", "Undo", () => {
    saveChat(chat);
    chats = loadChats();
    show(chats.find((other) => other.id === chat.id) ?? chat);
  });
}

function save(chat) {
  chat.updated = Date.now();
  if (!chats.includes(chat)) chats.unshift(chat);
  chats.sort((a, b) => b.updated - a.updated);
  if (!saveChat(chat)) toast("This browser has no room left to keep conversations.");
}

onChatsChanged(() => {
  // another tab wrote: take its conversations, but keep our objects while an answer is running
  chats = loadChats().map((chat) => [...chats, current].find((mine) => mine.id === chat.id && (running.has(mine.id) || mine === current)) ?? chat);
  showHistory();
});

// Asking

function ask(text) {
  const chat = current;
  if (running.has(chat.id)) return;
  if (!chat.title) chat.title = text.trim().split("\n")[0].slice(0, 80);
  chat.messages.push({ role: "user", content: text });
  answer(chat);
}

function retry(chat, index) {
  if (running.has(chat.id)) return;
  chat.messages.length = index; // the last answer: only it shows the button
  answer(chat);
}

function answer(chat) {
  const message = { role: "assistant", content: "", state: "streaming" };
  const request = requestFor(chat);
  chat.messages.push(message);
  const run = { message, view: null, created: performance.now(), first: 0, before: 0, tokens: 0, saved: 0 };
  running.set(chat.id, run);
  save(chat);
  show(chat);
  run.id = socket.create(request, {
    started: () => {},
    token: (frame) => token(chat, run, frame),
    finished: (frame) => end(chat, run, ENDINGS[frame.reason] ?? "done", frame.usage),
    failed: (error) => {
      message.error = error?.message ?? "The request failed.";
      end(chat, run, "failed", null);
    },
  });
  run.stop = () => socket.cancel(run.id);
  announce("The model is answering.");
}

function requestFor(chat) {
  const { system, sampling } = settings();
  const messages = system ? [{ role: "system", content: system }] : [];
  chat.messages.forEach(({ role, content }, index) => {
    const next = chat.messages[index + 1];
    const unanswered = role === "user" && next?.role === "assistant" && !next.content;
    if (content && !unanswered) messages.push({ role, content });
  });
  return { model: $("model").value || models[0]?.id, messages, ...sampling };
}

function token(chat, run, frame) {
  const now = performance.now();
  const { message } = run;
  const count = frame.tokens ?? 1;
  if (!run.first) {
    run.first = now;
    run.before = count; // the first frame's tokens are older than the start of the rate's clock
  }
  run.tokens += count;
  if (frame.kind === "text") message.content += frame.text;
  const seconds = (now - run.first) / 1000;
  message.stats = { tokens: run.tokens, firstMs: run.first - run.created };
  if (seconds > 0) message.stats.perSecond = (run.tokens - run.before) / seconds;
  if (now - run.saved > SAVE_EVERY_MS) {
    run.saved = now;
    saveChat(chat);
  }
  if (chat === current) {
    run.view.update();
    if (following) scrollToEnd();
  }
}

function end(chat, run, state, usage) {
  const { message } = run;
  message.state = state;
  if (usage) {
    message.stats = { ...message.stats, tokens: usage.completion_tokens };
    chat.context = usage.total_tokens;
  }
  running.delete(chat.id);
  if (chats.includes(chat)) save(chat);
  if (chat !== current) return;
  run.view.update();
  if (following) scrollToEnd();
  showHistory();
  showComposer();
  showContext();
  announce(state === "failed" ? "" : message.content); // a failure has role="alert" of its own
}

// The page around the answer

function showComposer() {
  const busy = running.has(current.id);
  const prompt = $("prompt");
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("send").disabled = !prompt.value.trim();
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

function showContext() {
  const limit = models.find((model) => model.id === ($("model").value || models[0]?.id))?.max_model_len;
  const used = current.context ?? 0;
  $("context").textContent = limit && used ? `${used.toLocaleString("en")} of ${limit.toLocaleString("en")} tokens used` : "";
}

function showState(state, seconds) {
  const words = {
    connecting: "Connecting…",
    ready: "Ready",
    waiting: `Connection lost. Trying again in ${seconds} s`,
    refused: "Key needed",
  };
  $("status").dataset.state = state;
  $("status-text").textContent = words[state];
  if (state === "ready" && models.length === 0) loadModels().catch(() => {}); // the next connection asks again
  if (state === "refused") start(true);
}

function announce(text) {
  $("announcer").textContent = text;
}

function scrollToEnd() {
  $("scroller").scrollTop = current.messages.length > 0 ? $("scroller").scrollHeight : 0;
  $("to-end").hidden = true;
}

$("scroller").addEventListener("scroll", () => {
  const { scrollHeight, scrollTop, clientHeight } = $("scroller");
  following = scrollHeight - scrollTop - clientHeight < NEAR_END;
  $("to-end").hidden = following;
});
$("to-end").addEventListener("click", () => {
  following = true;
  scrollToEnd();
});
$("messages").addEventListener("click", (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) copyText(copy.closest(".code").querySelector("code").textContent, copy);
});

// The message box

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || running.has(current.id)) return;
  $("prompt").value = "";
  ask(text);
});
$("prompt").addEventListener("input", showComposer);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
});
$("stop").addEventListener("click", () => {
  running.get(current.id)?.stop();
  $("prompt").focus();
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) running.get(current.id)?.stop();
});
$("new-chat").addEventListener("click", () => {
  show(newChat());
  closeSidebar();
  $("prompt").focus();
});
addEventListener("pagehide", () => {
  for (const chat of chats) if (running.has(chat.id)) saveChat(chat);
});
for (const [title, text] of EXAMPLES) {
  const card = make("button", "example");
  card.append(make("b", "", title), text);
  card.addEventListener("click", () => ask(text));
  const item = make("li");
  item.append(card);
  $("examples").append(item);
}

// Starting

async function loadModels() {
  const key = loadKey();
  const response = await fetch("/v1/models", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
  if (response.status === 401) return false;
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  models = (await response.json()).data;
  $("model").replaceChildren(...models.map((model) => new Option(model.id, model.id)));
  $("model").hidden = models.length < 2;
  $("model-name").hidden = models.length > 1;
  $("model-name").textContent = models[0]?.id ?? "No model";
  showContext();
  return true;
}

async function start(wrongKey = false) {
  try {
    let accepted = !wrongKey && (await loadModels());
    while (!accepted) {
      saveKey(await askForKey(wrongKey || loadKey() !== null));
      wrongKey = false;
      accepted = await loadModels();
    }
  } catch {
    $("model-name").textContent = "No model yet"; // the socket keeps trying, and asks again once it is open
  }
  socket.connect(loadKey());
}

$("model").addEventListener("change", showContext);
show(current);
start();

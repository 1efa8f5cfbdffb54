// The chat page: brings the conversations, the running answers, the server and what is shown together.

import { Answers } from "./answers.js";
import { filesIn } from "./attached.js";
import { setUpComposer } from "./composer.js";
import { setUpConnection } from "./connection.js";
import { Conversations, leafOf, newId } from "./conversations.js";
import { countTokens, showContext } from "./context.js";
import { copyText } from "./copy.js";
import { Database } from "./database.js";
import { $ } from "./dom.js";
import { setUpTheme } from "./frame.js";
import { setUpFiles } from "./files.js";
import { History } from "./history.js";
import { migrate } from "./migrate.js";
import { setUpSidebar, toast } from "./panels.js";
import { leftOutOf, requestOf, roomFor, TOO_LARGE } from "./request.js";
import { scoresFor } from "./scores.js";
import { setUpScrolling } from "./scrolling.js";
import { findConversations, wholeCharacters } from "./search.js";
import { setUpSettings } from "./settings.js";
import { loadCurrent, loadKey, loadSettings, saveCurrent } from "./store.js";
import { Thread } from "./thread.js";
import { newestLeaf, pathTo } from "./tree.js";
import { showExamples } from "./welcome.js";

let opening = null; // settled once the conversation that was chosen is open

setUpTheme();
const closeSidebar = setUpSidebar();
const database = await Database.open(storageTrouble);
await migrate(database);
const conversations = await Conversations.load(database, changed);
const connection = setUpConnection(modelChanged);
const answers = new Answers(connection.socket, conversations, requestFor);
const follow = setUpScrolling();
const history = new History({ open: openAndClose, remove, rename, find });
setUpFiles({ current: () => ({ chat: current, path: path() }), conversations });
const settings = setUpSettings((values) => change({ settings: values }));
const ifValid = (action) => (...details) => settings.valid() && action(...details); // false: a setting is wrong
const thread = new Thread($("messages"), { answer: ifValid(answer), edit: ifValid(edit), retry: ifValid(retry), goOn: ifValid(goOn), choose, respond: ifValid(respond), callOf });
const composer = setUpComposer({ mayAsk: settings.valid, onSend: ask, onStop: stop, onInput: countContext, tokensOf });
let current = conversations.chats.get(loadCurrent()) ?? newChat(loadCurrent() ?? newId());

// The open conversation

function newChat(id = newId()) {
  return { id, title: "", created: Date.now(), updated: Date.now(), leaf: null, settings: loadSettings() };
}

function path() {
  return pathTo(conversations.messages, leafOf(current, conversations.messages));
}

function open(chat) {
  opening = show(chat);
  return opening;
}

async function show(chat) {
  if (!(await conversations.show(chat.id))) return;
  current = chat;
  saveCurrent(chat.id);
  composer.show(chat.id);
  changed(chat.id);
  follow(true);
}

// Something changed, here or in another tab: `message`, or anything in the conversation `id`.
function changed(id, message) {
  if (id === current.id && current.title && !conversations.chats.has(id)) {
    open(newChat()); // it was deleted
  } else if (id === current.id && message) {
    thread.update(message);
  } else {
    if (id === current.id) showConversation();
    history.show(conversations.list(), current.id);
  }
}

function showConversation() {
  current = conversations.chats.get(current.id) ?? current;
  const messages = path();
  const wasRunning = thread.busy;
  thread.show(conversations.messages, messages);
  const last = messages.at(-1);
  if (wasRunning && !thread.busy && last && last.state !== "failed") announce(last.content); // a failure has role="alert"
  for (const message of messages) if (message.state === "streaming") answers.follow(message);
  $("welcome").hidden = messages.length > 0;
  document.title = current.title ? `${current.title} – Triolet` : "Triolet";
  settings.show(current.settings);
  composer.busy(thread.busy);
  countContext();
}

function change(fields) {
  if (!conversations.chats.has(current.id)) conversations.add(current, [], fields);
  else conversations.change(current.id, fields);
}

function openAndClose(chat) {
  open(chat);
  closeSidebar();
  composer.focus();
}

async function remove(chat) {
  if (!conversations.chats.has(chat.id)) return; // a second click
  const { messages, restore } = await conversations.remove(chat.id);
  for (const { id, state } of messages) if (state === "streaming") answers.stop(id);
  toast("Conversation deleted", "Undo", async () => {
    await restore();
    open(conversations.chats.get(chat.id));
    composer.focus();
  });
}

function rename(chat, title) {
  conversations.change(chat.id, { title });
}

async function find(words) {
  return findConversations(conversations.list(), await conversations.messagesOf(), words);
}

function storageTrouble(words) {
  $("storage").textContent = words || "Conversations are kept in this browser only.";
  if (words) toast(words);
}

// Asking

async function ask(text) {
  await opening;
  const { files, typed } = filesIn(text);
  const title = current.title || wholeCharacters((typed || files[0].name).split("\n")[0], 0, 80);
  const last = path().at(-1);
  question({ ...record("user", last?.id ?? null), content: text }, { title });
}

function edit(message, text) {
  question({ ...record("user", message.parent), content: text });
}

function question(message, fields) {
  conversations.add(current, [message], fields); // before anything is asked of the server, so that it cannot be lost
  answer(message);
}

function retry(message) {
  answer(conversations.messages.get(message.parent));
}

function answer(asking) {
  begin({ ...record("assistant", asking.id), content: "" });
}

// The results of an answer's calls: the next answer has them.
function respond(message, results) {
  conversations.add(current, [{ ...message, results }]);
  answer(message);
}

// Go on with an answer that was cut.
function goOn(message) {
  begin({ ...message, base: message.stats?.tokens ?? 0, code: undefined });
}

function begin(message) {
  const asked = { model: connection.model().id, ...settings.asked() };
  const scores = scoresFor(message, asked.sampling);
  answers.begin(conversations.chats.get(message.chat), { ...message, state: "streaming", asked, scores });
  follow(true);
  composer.focus(); // the button that was clicked is gone
  announce("The model is answering.");
}

function record(role, parent) {
  return { id: newId(), chat: current.id, parent, role, created: Date.now() };
}

async function requestFor({ id, chat, parent, content, asked }) {
  const { max_model_len: limit } = connection.model();
  const messages = new Map((await conversations.messagesOf(chat)).map((message) => [message.id, message]));
  const asking = pathTo(messages, content ? id : parent);
  if (limit) asked.leftOut = await leftOutOf(asking, asked, limit, countTokens).catch(() => 0);
  return requestOf(asking, asked);
}

// The request for an answer, as another program would make it. An imported answer does not say with which settings.
function callOf({ parent, asked = { model: connection.model().id, ...settings.asked() } }) {
  const request = requestOf(pathTo(conversations.messages, parent), asked);
  return { base: new URL("v1", document.baseURI).href, request, key: loadKey() !== null };
}

function stop() {
  const message = path().find(({ state }) => state === "streaming");
  if (message) answers.stop(message.id);
}

function choose(id) {
  follow(false);
  change({ leaf: newestLeaf(conversations.messages, id) });
}

// The page around the answer

function modelChanged() {
  showExamples(connection.model().id, ifValid(ask));
  countContext();
}

function countContext() {
  const { id, max_model_len: limit } = connection.model();
  const messages = path();
  const growing = messages.at(-1)?.state === "streaming" ? messages.pop() : undefined;
  if (composer.text()) messages.push({ role: "user", content: composer.text() });
  const { continue_final_message, ...request } = requestOf(messages, { model: id, ...settings.asked() });
  showContext(request, limit, growing?.stats?.tokens);
}

// How many tokens a question takes that consists of `text`, and how many it may take; those are not known
// while no model is.
async function tokensOf(text) {
  const { id: model, max_model_len: limit } = connection.model();
  if (!limit) return { room: Infinity };
  const room = Math.max(0, roomFor(limit, settings.asked().sampling));
  if (!text) return { tokens: 0, room };
  const request = requestOf([{ role: "user", content: text }], { model, ...settings.asked() });
  const tokens = await countTokens(request).catch(({ status }) => (TOO_LARGE.has(status) ? Infinity : undefined));
  return { tokens, room };
}

function announce(text) {
  $("announcer").textContent = text;
}

$("messages").addEventListener("click", (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) copyText(copy.closest(".code").querySelector("code").textContent, copy);
});
$("new-chat").addEventListener("click", () => openAndClose(newChat()));
addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || !event.shiftKey || event.code !== "KeyO") return;
  event.preventDefault();
  openAndClose(newChat());
});

addEventListener("pageshow", (event) => event.persisted && location.reload()); // it has missed what other tabs told

for (const message of await database.running()) answers.follow(message);
await open(current);
connection.start();

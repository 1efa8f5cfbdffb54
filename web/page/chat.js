// The chat page: brings the conversations, the running answers, the server and what is shown together.

import { Answers } from "./answers.js";
import { setUpAsking } from "./asking.js";
import { difference, SIDES, sidesOf } from "./compare.js";
import { setUpComposer } from "./composer.js";
import { setUpConnection } from "./connection.js";
import { Conversations, leafOf, newId } from "./conversations.js";
import { copyText } from "./copy.js";
import { Database } from "./database.js";
import { $ } from "./dom.js";
import { setUpTheme } from "./frame.js";
import { setUpFiles } from "./files.js";
import { History } from "./history.js";
import { migrate } from "./migrate.js";
import { chosenModel } from "./models.js";
import { setUpSidebar, toast } from "./panels.js";
import { setUpPicker } from "./picker.js";
import { setUpRequests } from "./requests.js";
import { setUpScrolling } from "./scrolling.js";
import { findConversations } from "./search.js";
import { setUpSettings } from "./settings.js";
import { loadCurrent, loadSettings, saveCurrent } from "./store.js";
import { Thread } from "./thread.js";
import { newestLeaf, pathTo } from "./tree.js";
import { showExamples } from "./welcome.js";

let opening = null; // settled once the conversation that was chosen is open

setUpTheme();
const closeSidebar = setUpSidebar();
const database = await Database.open(storageTrouble);
await migrate(database);
const conversations = await Conversations.load(database, changed);
const connection = setUpConnection(modelsChanged);
const requests = setUpRequests(conversations, connection.models);
const answers = new Answers(connection.socket, conversations, requests.forAnswer);
const follow = setUpScrolling();
const history = new History({ open: openAndClose, remove, rename, find });
setUpFiles({ current: () => ({ chat: current, path: path() }), conversations });
const settings = setUpSettings({ onChange: (values, side) => change(side ? { second: values } : { settings: values }), onCompare: compare });
const showModel = setUpPicker((model) => change({ settings: { ...current.settings, model } }));
const ifValid = (action) => (...details) => settings.valid() && action(...details); // false: a setting is wrong
const asking = setUpAsking({ conversations, requests, answers, current: () => current, path, pair: () => thread.pair, onBegin: begun });
const asks = Object.fromEntries(["answer", "edit", "retry", "goOn", "respond"].map((name) => [name, ifValid(asking[name])]));
const thread = new Thread($("messages"), { ...asks, choose, decide, callOf: (message) => requests.callOf(message, current.settings) });
const composer = setUpComposer({ mayAsk: () => settings.valid() && decided(), onSend: ask, onStop: stop, onInput: countContext, tokensOf: (text) => requests.tokensOf(text, current.settings) });
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
  if (wasRunning && !thread.busy) ended();
  for (const message of thread.shown) if (message.state === "streaming") answers.follow(message);
  $("welcome").hidden = messages.length > 0;
  document.title = current.title ? `${current.title} – Triolet` : "Triolet";
  composer.busy(thread.busy);
  showSettings();
}

function showSettings() {
  const models = connection.models();
  const sides = sidesOf(current);
  settings.show(sides, models);
  showModel(models, current.settings.model);
  const gone = sides.map(({ model }) => [model, chosenModel(models, model)]).filter(([, { gone }]) => gone);
  const notes = gone.map(([name, { model }]) => `“${name}” is not served now: “${model.id}” answers in its place.`);
  if (notes[0] && !$("note").textContent.includes(notes[0])) announce(notes[0]);
  if (current.comparing) notes.push(comparison(sides.map(requests.askedFor)));
  $("note").textContent = notes.join(" ");
  countContext();
}

function comparison([one, other]) {
  const words = [difference(one, other), difference(other, one)].map((words, side) => `${SIDES[side]}: ${words}.`);
  return `Each question gets two answers. ${difference(one, other) ? words.join(" ") : "Their settings are the same."}`;
}

// No answer that is shown is running any more.
function ended() {
  const written = (thread.pair ?? thread.shown.slice(-1)).filter(({ state }) => state !== "failed"); // a failure has role="alert"
  announce(written.map(({ content }) => content).join("\n\n"));
  connection.refresh(); // a model may have been loaded for it, or be gone
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

// The answers

async function ask(text) {
  await opening;
  asking.ask(text);
}

function begun(count) {
  follow(true);
  composer.focus(); // the button that was clicked is gone
  announce(count > 1 ? "Two answers are being written." : "The model is answering.");
}

function stop() {
  for (const { id, state } of thread.shown) if (state === "streaming") answers.stop(id);
}

function choose(id) {
  follow(false);
  change({ leaf: newestLeaf(conversations.messages, id) });
}

function compare(wanted) {
  change({ comparing: wanted, second: current.second ?? current.settings });
}

function decide(message) {
  asking.decide(message);
  composer.focus();
  toast("The other answer is kept as a version of this one.");
}

function decided() {
  if (!thread.pair) return true;
  const choice = document.querySelector(".pair .choose:not([hidden])");
  toast(choice ? "Choose the answer to go on with first." : "Both answers failed. Try one of them again, or edit the question.");
  (choice ?? document.querySelector(".pair .failure button")).focus();
  return false;
}

// The page around the answer

function modelsChanged() {
  showExamples(requests.askedFor(current.settings).model, ifValid(ask));
  showSettings();
}

function countContext() {
  requests.countContext(path(), composer.text(), current.settings);
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

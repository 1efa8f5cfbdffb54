// What is asked: a question, an edited one, an answer, another one, more of one. Where the conversation compares two settings,
// each question gets two answers, until one is chosen.

import { filesIn } from "./attached.js";
import { sidesOf } from "./compare.js";
import { newId } from "./conversations.js";
import { scoresFor } from "./scores.js";
import { wholeCharacters } from "./search.js";

// current(): the conversation that is open; path(): its messages; pair(): the two of them that stand side by side, if any;
// onBegin(count) hears of answers that begin.
export function setUpAsking({ conversations, requests, answers, current, path, pair, onBegin }) {
  const record = (role, parent) => ({ id: newId(), chat: current().id, parent, role, created: Date.now() });
  // 0 or 1 where the message is one of two that stand side by side, else -1.
  const sideOf = ({ id }) => pair()?.findIndex((one) => one.id === id) ?? -1;

  function ask(text) {
    const { files, typed } = filesIn(text);
    const title = current().title || wholeCharacters((typed || files[0].name).split("\n")[0], 0, 80);
    question({ ...record("user", path().at(-1)?.id ?? null), content: text }, { title });
  }

  function edit(message, text) {
    question({ ...record("user", message.parent), content: text });
  }

  function question(message, fields) {
    conversations.add(current(), [message], fields); // before anything is asked of the server, so that it cannot be lost
    answer(message);
  }

  function answer(asking) {
    const made = sidesOf(current()).map((settings, side) => {
      const message = record("assistant", asking.id);
      return [{ ...message, created: message.created + side, content: "" }, requests.askedFor(settings)];
    });
    begin(made, made.length > 1 ? [{ ...asking, pair: made.map(([{ id }]) => id) }] : []);
  }

  function retry(message) {
    const asking = conversations.messages.get(message.parent);
    const side = sideOf(message);
    if (side < 0) return answer(asking);
    const other = { ...record("assistant", asking.id), content: "" };
    return begin([[other, againFor(message)]], [{ ...asking, pair: asking.pair.with(side, other.id) }]);
  }

  // Go on with an answer that was cut.
  function goOn(message) {
    begin([[{ ...message, base: message.stats?.tokens ?? 0, code: undefined }, againFor(message)]]);
  }

  // The results of an answer's calls: the next answer has them.
  function respond(message, results) {
    if (sideOf(message) >= 0) decide(message);
    const responded = { ...message, results };
    conversations.add(current(), [responded]);
    answer(responded);
  }

  // made: [record, what is asked for it]…; others: messages that change with them.
  function begin(made, others) {
    const messages = made.map(([message, asked]) => ({ ...message, state: "streaming", asked, scores: scoresFor(message, asked.sampling) }));
    answers.begin(conversations.chats.get(current().id), messages, others);
    onBegin(messages.length);
  }

  // What is asked for more of an answer, or for another one in its place: with the settings as they are now.
  function againFor(message) {
    const side = sideOf(message);
    if (side < 0) return requests.askedFor(current().settings);
    if (current().comparing) return requests.askedFor(sidesOf(current())[side]);
    const { model, system, sampling } = message.asked;
    return { model, system, sampling };
  }

  // Of two answers, the conversation goes on with this one and its settings; the other one is kept as a version.
  function decide(message) {
    const { settings, second, comparing } = current();
    for (const { id, state } of pair()) if (id !== message.id && state === "streaming") answers.stop(id);
    const swapped = comparing && sideOf(message) === 1 ? { settings: second, second: settings } : {};
    const { pair: _, ...asking } = conversations.messages.get(message.parent);
    conversations.add(current(), [asking], { ...swapped, comparing: false, leaf: message.id });
  }

  return { ask, edit, answer, retry, goOn, respond, decide };
}

// Shows the open conversation: the messages on the path to its leaf, or to two answers side by side. A message keeps its
// nodes while it is on the page.

import { pairAt } from "./compare.js";
import { make, place } from "./dom.js";
import { PairView } from "./pair.js";
import { childrenOf } from "./tree.js";
import { AnswerView, QuestionView } from "./view.js";

export class Thread {
  #container;
  #actions;
  #views = new Map(); // message id -> view
  #cut = make("p", "cut", "The model no longer sees what is above: the conversation is longer than its context.");
  #pair = null; // { view, messages } where two answers stand side by side
  shown = []; // messages
  busy = false; // an answer that is shown is running

  // actions: answer(question), edit(question, text), retry(answer), goOn(answer), choose(message id), decide(answer of a pair), respond(answer, results of its calls), callOf(answer)
  constructor(container, actions) {
    this.#container = container;
    this.#actions = actions;
  }

  // The two answers of which one is to be chosen.
  get pair() {
    return this.#pair?.messages;
  }

  show(messages, path) {
    const pair = pairAt(messages, path);
    const single = pair ? path.slice(0, -1) : path;
    this.shown = [...single, ...(pair ?? [])];
    this.busy = this.shown.some(({ state }) => state === "streaming");
    const children = childrenOf(messages);
    this.#views = new Map(this.shown.map((message) => [message.id, this.#views.get(message.id) ?? this.#viewOf(message)]));
    for (const message of this.shown) {
      const versions = pair?.includes(message) ? [message] : children.get(message.parent).filter((other) => other.role === message.role);
      this.#views.get(message.id).update(message, versions.map((version) => version.id));
    }
    const nodes = single.map(({ id }) => this.#views.get(id).node);
    this.#pair = pair ? { view: this.#pair?.view ?? new PairView(this.#actions.decide), messages: pair } : null;
    this.#pair?.view.update(pair, pair.map(({ id }) => this.#views.get(id).node));
    if (pair) nodes.push(this.#pair.view.node);
    const leftOut = path.findLast((message) => message.role === "assistant")?.asked?.leftOut ?? 0;
    if (leftOut > 0) nodes.splice(leftOut, 0, this.#cut);
    place(this.#container, nodes);
  }

  // Only its text or state changed.
  update(message) {
    this.#views.get(message.id)?.update(message);
    this.#pair?.view.update(this.#pair.messages);
  }

  #viewOf(message) {
    const { answer, edit, retry, goOn, choose, respond, callOf } = this.#actions;
    const onChoose = (id, which) => {
      choose(id);
      this.#views.get(id)?.versions.focus(which);
    };
    if (message.role === "user") {
      return new QuestionView(message, { onAnswer: () => answer(message), onEdit: (text) => edit(message, text), onChoose });
    }
    const onEdit = () => this.#views.get(message.parent)?.edit?.();
    return new AnswerView(message, { onRetry: () => retry(message), onContinue: () => goOn(message), onEdit, onChoose, onResults: respond, callOf });
  }
}

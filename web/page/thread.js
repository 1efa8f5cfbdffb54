// Shows the open conversation: the messages on the path to its leaf. A message keeps its nodes while it is on the page.

import { make, place } from "./dom.js";
import { childrenOf } from "./tree.js";
import { AnswerView, QuestionView } from "./view.js";

export class Thread {
  #container;
  #actions;
  #views = new Map(); // message id -> view
  #cut = make("p", "cut", "The model no longer sees what is above: the conversation is longer than its context.");
  busy = false; // an answer that is shown is running

  // actions: answer(question), edit(question, text), retry(answer), goOn(answer), choose(message id), respond(answer, results of its calls), callOf(answer)
  constructor(container, actions) {
    this.#container = container;
    this.#actions = actions;
  }

  show(messages, path) {
    this.busy = path.some((message) => message.state === "streaming");
    const children = childrenOf(messages);
    const views = path.map((message) => this.#views.get(message.id) ?? this.#viewOf(message));
    this.#views = new Map(path.map((message, index) => [message.id, views[index]]));
    path.forEach((message, index) => {
      const versions = children.get(message.parent).filter((other) => other.role === message.role);
      views[index].update(message, versions.map((version) => version.id));
    });
    const nodes = views.map((view) => view.node);
    const leftOut = path.findLast((message) => message.role === "assistant")?.asked?.leftOut ?? 0;
    if (leftOut > 0) nodes.splice(leftOut, 0, this.#cut);
    place(this.#container, nodes);
  }

  // Only its text or state changed.
  update(message) {
    this.#views.get(message.id)?.update(message);
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

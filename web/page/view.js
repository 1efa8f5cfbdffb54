// The DOM of the messages. Knows how they look; callers pass in what the buttons do.

import { filesIn, withFiles } from "./attached.js";
import { CallsView } from "./calls.js";
import { copyText } from "./copy.js";
import { button, icon, make } from "./dom.js";
import { menu } from "./menu.js";
import { createRenderer } from "./render.js";
import { ScoresView } from "./scores.js";
import { SNIPPETS } from "./snippets.js";

// ‹ 2/3 ›: the versions of a message. `onChoose` gets the id of another one.
class Versions {
  constructor(what, onChoose) {
    this.node = make("span", "versions");
    this.count = make("span");
    this.buttons = ["Previous", "Next"].map((word, index) => {
      const node = button("small-button", index ? "right" : "left", "", () => onChoose(this.ids[this.index + 2 * index - 1], index));
      node.setAttribute("aria-label", `${word} version of ${what}`);
      return node;
    });
    this.node.append(this.buttons[0], this.count, this.buttons[1]);
  }

  update(ids, id) {
    this.ids = ids;
    this.index = ids.indexOf(id);
    this.node.hidden = ids.length < 2;
    this.count.textContent = `${this.index + 1}/${ids.length}`;
    this.buttons[0].disabled = this.index === 0;
    this.buttons[1].disabled = this.index === ids.length - 1;
  }

  focus(index) {
    (this.buttons[index].disabled ? this.buttons[1 - index] : this.buttons[index]).focus();
  }
}

// onAnswer(), onEdit(text) and onChoose(id, which button) are called for what was clicked.
export class QuestionView {
  constructor(message, { onAnswer, onEdit, onChoose }) {
    this.message = message;
    this.onEdit = onEdit;
    this.node = make("article", "message user");
    this.node.setAttribute("aria-label", "You");
    this.asked = filesIn(message.content);
    this.bubble = make("div", "bubble");
    this.bubble.append(...this.asked.files.map(attachedNode), make("div", "", this.asked.typed));
    this.bubble.lastChild.dir = "auto";
    this.below = make("div", "below");
    this.versions = new Versions("the question", onChoose);
    const copy = button("small-button", "copy", "Copy", () => copyText(message.content, copy));
    this.editButton = button("small-button", "pencil", "Edit", () => this.edit());
    const answer = button("small-button last-only", "retry", "Answer", onAnswer); // it has none
    this.below.append(copy, this.editButton, answer, this.versions.node);
    this.node.append(this.bubble, this.below);
  }

  update(message, ids) {
    this.versions.update(ids, message.id);
  }

  edit(text = this.asked.typed) {
    const form = make("form", "edit");
    const area = make("textarea");
    area.setAttribute("aria-label", "Edit the question");
    area.value = text;
    area.dir = "auto";
    const close = () => {
      form.replaceWith(this.bubble, this.below);
      this.editButton.focus();
    };
    const cancel = make("button", "quiet-button", "Cancel");
    cancel.type = "button";
    cancel.addEventListener("click", close);
    form.append(area, make("p", "fine", "The answer to it becomes a new branch; this one is kept."), cancel, make("button", "solid-button", "Send"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const asked = withFiles(this.asked.files, area.value.trim());
      if (asked === "") return;
      close();
      if (this.onEdit(asked) === false) this.edit(area.value); // the settings are wrong
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.preventDefault(); // it would also stop a running answer
        close();
      } else if (event.key === "Enter" && event.target === area && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.below.remove();
    this.bubble.replaceWith(form);
    area.focus();
  }
}

// A file of a question, folded.
function attachedNode({ name, text }) {
  const node = make("details", "attached-file");
  const summary = make("summary");
  summary.append(icon("clip"), make("span", "chip-name", name));
  const body = make("pre", "", text);
  body.tabIndex = 0;
  node.append(summary, body);
  return node;
}

// One answer: its text while it grows, and the line below it.
export class AnswerView {
  // callOf(message): what snippets.js needs to write down how this answer was asked for.
  constructor(message, { onRetry, onContinue, onEdit, onChoose, onResults, callOf }) {
    this.node = make("article", "message assistant");
    this.node.setAttribute("aria-label", "Answer");
    const body = make("div", "body");
    this.prose = make("div", "prose");
    this.renderer = createRenderer(this.prose);
    this.below = make("div", "below");
    this.stats = make("span", "stats");
    this.copy = button("small-button", "copy", "Copy", () => copyText(this.message.content, this.copy));
    this.copyAs = menu("small-button", "code", "Copy as", SNIPPETS.map(([words, write]) => [words, (node) => copyText(write(callOf(this.message)), node)]));
    this.asTokens = button("small-button", "tokens", "Tokens", () => this.#show(!this.tokensShown));
    this.tokensShown = true; // where the answer has scores
    this.scores = null; // its ScoresView
    this.retry = button("small-button", "retry", "Retry", onRetry);
    this.versions = new Versions("the answer", onChoose);
    this.failure = make("div", "failure");
    this.failure.setAttribute("role", "alert");
    this.failureText = make("span");
    this.again = make("button", "quiet-button");
    this.again.addEventListener("click", () => (tooLong(this.message) ? onEdit() : onRetry()));
    this.failure.append(icon("warning"), this.failureText, this.again);
    this.continue = button("small-button last-only", "forward", "Continue", onContinue);
    this.waiting = make("p", "waiting");
    this.waiting.setAttribute("role", "status");
    this.below.append(this.copy, this.copyAs, this.asTokens, this.retry, this.continue, this.versions.node, this.stats);
    this.calls = new CallsView((results) => onResults(this.message, results));
    body.append(this.prose, this.calls.node, this.waiting, this.failure, this.below);
    this.node.append(icon("mark", "mark"), body);
  }

  update(message, ids) {
    const { content, state, stats, error } = message;
    const streaming = state === "streaming";
    this.message = message;
    this.#show(this.tokensShown);
    this.calls.update(message);
    this.node.setAttribute("aria-busy", String(streaming));
    this.copy.hidden = this.copyAs.hidden = streaming || !content;
    this.asTokens.hidden = !message.scores?.length;
    this.retry.hidden = streaming || state === "failed";
    this.failure.hidden = state !== "failed";
    this.failureText.textContent = error ?? "";
    this.again.textContent = tooLong(message) ? "Edit the question" : "Retry";
    this.continue.hidden = !content || !(state in ENDINGS);
    this.waiting.textContent = (streaming && !content && message.waiting) || "";
    this.stats.textContent = describe(stats, state);
    if (ids) this.versions.update(ids, message.id);
  }

  // Its tokens with their probabilities, where they were asked for, or the text that they make. Only what is shown grows.
  #show(tokens) {
    const { content, state, scores } = this.message;
    this.tokensShown = tokens;
    this.prose.hidden = Boolean(tokens && scores?.length);
    this.asTokens.setAttribute("aria-pressed", String(tokens));
    if (this.prose.hidden && !this.scores) {
      this.scores = new ScoresView();
      this.prose.before(this.scores.node);
    }
    if (this.scores) this.scores.node.hidden = !this.prose.hidden;
    if (this.prose.hidden) this.scores.update(scores);
    else this.renderer.update(content, state !== "streaming");
  }
}

const ENDINGS = {
  stopped: "Stopped",
  length: "Cut at the token limit",
  deadline: "Ended at the time limit",
  stalled: "Ended: this connection was too slow",
  lost: "The connection was lost, and the server no longer has the rest",
};

// The question does not fit into the model's context, however often it is asked.
const tooLong = ({ code, param }) => code === "context_length_exceeded" && param !== "max_tokens";

function describe(stats, state) {
  const parts = [];
  if (ENDINGS[state]) parts.push(ENDINGS[state]);
  if (stats?.tokens) parts.push(`${stats.tokens} ${stats.tokens === 1 ? "token" : "tokens"}`);
  if (stats?.perSecond) parts.push(`${stats.perSecond.toFixed(stats.perSecond < 10 ? 1 : 0)} tokens/s`);
  if (stats?.firstMs !== undefined) parts.push(`first token ${duration(stats.firstMs)}`);
  return parts.join(" · ");
}

const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

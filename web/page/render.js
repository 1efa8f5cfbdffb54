// Shows an answer's text in an element while it grows.
//
//   const renderer = createRenderer(element);
//   renderer.update(text, done);   // the whole text so far; `done` when no more is to come
//   renderer.append(text);         // or: what came since
//
// A text that continues the one shown costs only what is new; any other text is rendered from the start. What a model
// thinks before it answers, <think>…</think>, becomes a folded block.

import { MarkdownStream } from "./prose/stream.js";

const OPEN = "<think>";
const CLOSE = "</think>";
const LONGEST_START = 100; // characters of white space before <think>

export function createRenderer(element) {
  return new Renderer(element);
}

class Renderer {
  #element;
  #shown = ""; // all text so far
  #held = ""; // the end of it that is not shown yet: it may be the start of a tag, or half a line break
  #place = "start"; // where the next text belongs: "start", "thought" or "answer"
  #stream = null;
  #thought = null; // its <details>
  #links = null; // all definitions of links, once the text was finished
  #workBefore = 0;

  constructor(element) {
    this.#element = element;
  }

  // Characters parsed and appended for the text so far: linear in its length.
  get work() {
    return this.#workBefore + (this.#stream?.work ?? 0);
  }

  update(text, done) {
    if (!text.startsWith(this.#shown)) this.#reset();
    this.append(text.slice(this.#shown.length));
    if (done) this.#finish();
  }

  append(text) {
    this.#shown += text;
    this.#take(this.#held + text);
  }

  #take(text) {
    if (this.#place === "start") {
      const trimmed = text.trimStart();
      if (OPEN.startsWith(trimmed) && text.length < LONGEST_START) {
        this.#held = text;
        return;
      }
      if (trimmed.startsWith(OPEN)) {
        this.#beginThought();
        text = trimmed.slice(OPEN.length);
      } else this.#begin("answer", this.#element);
    }
    const end = this.#place === "thought" ? text.indexOf(CLOSE) : -1;
    if (end >= 0) {
      this.#show(text.slice(0, end));
      this.#endThought();
      text = text.slice(end + CLOSE.length);
    }
    const whole = text.length - unfinished(text, this.#place);
    this.#held = text.slice(whole);
    this.#show(text.slice(0, whole));
    if (!this.#thought) this.#foldBareThought(whole);
  }

  #show(text) {
    this.#stream.append(text.replace(/\r\n?/g, "\n"));
  }

  #finish() {
    if (this.#place === "start") this.#begin("answer", this.#element);
    this.#show(this.#held);
    this.#held = "";
    this.#stream.finish();
    if (this.#thought) this.#nameThought();
    if (this.#stream.definesLinks && !this.#links) this.#useLinks();
  }

  // Definitions of links mostly stand at the end of a text: with all of them known, it is rendered once more.
  #useLinks() {
    const text = this.#shown;
    const { work, links } = { work: this.work, links: this.#stream.links };
    this.#reset();
    this.#workBefore = work;
    this.#links = links;
    this.update(text, true);
  }

  #begin(place, element) {
    this.#workBefore = this.work;
    this.#stream = new MarkdownStream(element, this.#links ?? {});
    this.#place = place;
  }

  #beginThought() {
    const summary = document.createElement("summary");
    summary.textContent = "Thinking…";
    const text = document.createElement("div");
    text.className = "thought-text";
    this.#thought = document.createElement("details");
    this.#thought.className = "thought";
    this.#thought.append(summary, text);
    this.#element.append(this.#thought);
    this.#begin("thought", text);
  }

  #endThought() {
    this.#stream.finish();
    this.#nameThought();
    this.#begin("answer", this.#element);
  }

  #nameThought() {
    this.#thought.firstChild.textContent = "Thought";
  }

  // Some chat templates write <think> themselves, so that the answer has only </think>, on a line of its own.
  #foldBareThought(added) {
    const text = this.#shown.slice(0, this.#shown.length - this.#held.length);
    let end = text.indexOf(CLOSE, Math.max(0, text.length - added - CLOSE.length));
    while (end >= 0 && !/(^|\n)[ \t]*$/.test(text.slice(Math.max(0, end - 20), end))) end = text.indexOf(CLOSE, end + 1);
    if (end < 0 || text.lastIndexOf(OPEN, end) >= 0) return;
    this.#workBefore = this.work;
    this.#stream = null;
    this.#element.replaceChildren();
    this.#beginThought();
    this.#show(text.slice(0, end));
    this.#endThought();
    this.#show(text.slice(end + CLOSE.length));
  }

  #reset() {
    this.#element.replaceChildren();
    this.#shown = this.#held = "";
    this.#place = "start";
    this.#stream = this.#thought = this.#links = null;
    this.#workBefore = 0;
  }
}

// How many characters at the end of `text` need what follows to be understood.
function unfinished(text, place) {
  if (place === "thought") {
    for (let length = CLOSE.length - 1; length > 0; length--) if (text.endsWith(CLOSE.slice(0, length))) return length;
  }
  return text.endsWith("\r") ? 1 : 0;
}

// An answer as its tokens: each shows, under the pointer or by arrow keys, how probable it was and what else could have
// stood there. Tokens are only added at the end, so the work is linear in their number.

import { make } from "./dom.js";

const UNLIKELY = [0.1, 0.5, 0.9]; // below these a token is marked, from strong to faint

// One token of the API's log probabilities as an answer's record keeps it: [token, log probability, alternatives, bytes].
// The bytes are kept where the token ends within a character.
export function scoreOf({ token, logprob, bytes, top_logprobs: top }) {
  const alternatives = top.map((other) => [other.token, other.logprob]);
  return [token, logprob, alternatives, token.includes("\ufffd") && bytes ? bytes : null];
}

// The scores with which an answer begins, or goes on after `content`: they cover all of it, or there are none.
export const scoresFor = ({ content, scores }, { logprobs }) => (logprobs && (scores || !content) ? (scores ?? []) : undefined);

export class ScoresView {
  node = make("div", "scores");
  #text = make("div", "scores-text");
  #panel = make("div", "scores-panel");
  #scores = new WeakMap(); // a token's node -> its score
  #active = null;
  #decoder = new TextDecoder(); // of characters that several tokens make
  #id = `token-${Math.random().toString(36).slice(2)}`;

  constructor() {
    this.#text.tabIndex = 0;
    this.#text.dir = "auto";
    this.#text.setAttribute("role", "listbox");
    this.#text.setAttribute("aria-label", "Tokens of the answer, with their probabilities");
    this.#panel.setAttribute("role", "status");
    this.#panel.hidden = true;
    this.node.append(this.#text, this.#panel);
    this.#text.addEventListener("mouseover", ({ target }) => this.#scores.has(target) && this.#show(target));
    this.#text.addEventListener("mouseleave", () => this.#show(null));
    this.#text.addEventListener("blur", () => this.#show(null));
    this.#text.addEventListener("keydown", (event) => this.#keyPressed(event));
  }

  update(scores) {
    const added = scores.slice(this.#text.childElementCount).map((score) => this.#token(score));
    this.#text.append(...added);
  }

  #token(score) {
    const [token, logprob, , bytes] = score;
    const text = bytes ? this.#decoder.decode(new Uint8Array(bytes), { stream: true }) : token;
    const node = make("span", text.includes("\n") ? "token break" : "token", text);
    node.setAttribute("role", "option");
    const level = UNLIKELY.findIndex((bound) => Math.exp(logprob) < bound);
    if (level >= 0) node.dataset.level = String(level);
    this.#scores.set(node, score);
    return node;
  }

  #keyPressed(event) {
    const { firstChild, lastChild } = this.#text;
    const next = {
      ArrowRight: this.#active?.nextSibling ?? this.#active ?? firstChild,
      ArrowLeft: this.#active?.previousSibling ?? this.#active ?? firstChild,
      Home: firstChild,
      End: lastChild,
      Escape: null,
    }[event.key];
    if (next === undefined || (next === null && !this.#active)) return;
    event.preventDefault(); // Escape would stop a running answer
    this.#show(next);
    next?.scrollIntoView({ block: "nearest" });
  }

  #show(node) {
    this.#active?.removeAttribute("id");
    this.#active?.setAttribute("aria-selected", "false");
    this.#active = node;
    this.#panel.hidden = !node;
    if (!node) {
      this.#text.removeAttribute("aria-activedescendant");
      return;
    }
    node.id = this.#id;
    node.setAttribute("aria-selected", "true");
    this.#text.setAttribute("aria-activedescendant", this.#id);
    this.#panel.replaceChildren(...rowsOf(this.#scores.get(node)));
    this.#panel.style.left = `${Math.max(0, Math.min(node.offsetLeft, this.node.clientWidth - this.#panel.offsetWidth))}px`;
    this.#panel.style.top = `${node.offsetTop + node.offsetHeight + 4}px`;
  }
}

// The likeliest tokens, and the one that was drawn, if it is not among them.
function rowsOf([token, logprob, alternatives]) {
  const drawn = alternatives.findIndex(([other, score]) => other === token && score === logprob);
  const all = drawn >= 0 ? alternatives : [...alternatives, [token, logprob]];
  return all.map(([other, score], index) => {
    const share = Math.exp(score);
    const row = make("div", index === (drawn >= 0 ? drawn : alternatives.length) ? "score drawn" : "score");
    const bar = make("span", "score-bar");
    bar.style.width = `${100 * share}%`;
    row.append(make("code", "", visible(other)), make("span", "score-share", percent(share)), bar);
    return row;
  });
}

const visible = (token) => token.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣") || "(nothing)";
const percent = (share) => `${(100 * share).toFixed(share >= 0.9995 || share < 0.0005 ? 0 : 1)} %`;

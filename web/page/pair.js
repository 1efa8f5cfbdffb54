// The DOM of two answers side by side, or one below the other where there is little room.

import { difference, SIDES } from "./compare.js";
import { make, place } from "./dom.js";

export class PairView {
  node = make("section", "pair");
  #sides;

  // onChoose(message): the conversation shall go on with this answer.
  constructor(onChoose) {
    this.node.setAttribute("aria-label", "Two answers to choose from");
    this.#sides = SIDES.map((name) => new Side(name, onChoose));
    this.node.append(...this.#sides.map((side) => side.node));
  }

  // pair: the two messages; nodes: those that show them.
  update(pair, nodes) {
    this.#sides.forEach((side, index) => side.update(pair[index], pair[1 - index], nodes?.[index]));
  }
}

class Side {
  constructor(name, onChoose) {
    this.name = name;
    this.node = make("div", "side");
    this.node.setAttribute("role", "group");
    this.settings = make("span", "fine");
    const title = make("p", "side-title");
    title.append(make("b", "", name), this.settings);
    this.place = make("div");
    this.choose = make("button", "quiet-button choose", `Go on with the ${name.toLowerCase()}`);
    this.choose.addEventListener("click", () => onChoose(this.message));
    this.node.append(title, this.place, this.choose);
  }

  update(message, other, node) {
    this.message = message;
    const words = difference(message.asked, other.asked);
    this.settings.textContent = words;
    this.node.setAttribute("aria-label", words ? `${this.name}, ${words}` : this.name);
    this.choose.hidden = !message.content && !message.calls && ["streaming", "failed"].includes(message.state);
    if (node) place(this.place, [node]);
  }
}

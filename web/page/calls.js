// The tool calls of one answer, and the boxes for their results: the reader of the page runs the tools by hand.

import { make } from "./dom.js";

export class CallsView {
  #onResults;
  #entries = [];
  #send = make("button", "solid-button last-only", "Send results");

  // onResults(results) gets the texts, in the order of the calls.
  constructor(onResults) {
    this.#onResults = onResults;
    this.node = make("form", "calls");
    this.node.append(this.#send);
    this.node.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#onResults(this.#entries.map(({ area }) => area.value));
    });
  }

  update({ calls = [], results, state }) {
    this.node.hidden = calls.length === 0;
    while (this.#entries.length < calls.length) this.#entries.push(this.#entry());
    calls.forEach(({ name, arguments: given }, index) => {
      const { code, area, box } = this.#entries[index];
      code.textContent = `${name}(${given})`;
      area.setAttribute("aria-label", `Result of ${name}`);
      area.readOnly = results !== undefined;
      if (results) area.value = results[index];
      box.hidden = state === "streaming";
      box.classList.toggle("last-only", results === undefined);
    });
    this.#send.hidden = state === "streaming" || results !== undefined;
  }

  #entry() {
    const code = make("code");
    const area = make("textarea");
    area.rows = 2;
    area.placeholder = "What the tool returns";
    area.dir = "auto";
    const box = make("div", "result");
    box.append(area);
    const node = make("div", "call");
    node.append(code, box);
    this.#send.before(node);
    return { code, area, box };
  }
}

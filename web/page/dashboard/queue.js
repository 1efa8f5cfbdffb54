// The queue: waiting requests in the planner's order, and what each waits for.

import { make } from "../dom.js";
import { colourRow, requestCell } from "./request.js";
import { count, duration, reason } from "./words.js";

export class QueueTable {
  #body;
  #rows = new Map(); // sequence -> Row

  constructor(body) {
    this.#body = body;
  }

  // Another server may use the same numbers for other sequences.
  clear() {
    this.#rows.clear();
    this.#body.replaceChildren();
  }

  update(view, limits) {
    const present = new Set();
    view.queue.forEach((data, index) => {
      present.add(data.sequence);
      let row = this.#rows.get(data.sequence);
      if (!row) {
        row = new Row(data);
        this.#rows.set(data.sequence, row);
      }
      row.update(data, index + 1, reason(data, view, limits));
      if (this.#body.children[index] !== row.node) this.#body.insertBefore(row.node, this.#body.children[index] ?? null);
    });
    for (const [sequence, row] of this.#rows) {
      if (present.has(sequence)) continue;
      row.node.remove();
      this.#rows.delete(sequence);
    }
  }
}

class Row {
  constructor(data) {
    this.node = make("tr");
    colourRow(this.node, data);
    this.position = make("td", "number");
    const urgency = data.priority && `priority ${data.priority}`;
    const name = requestCell(data, urgency, data.generated && `preempted after ${count(data.generated)}`);
    this.reason = make("td", "wide reason");
    this.prompt = make("td", "number", count(data.prompt));
    this.waited = make("td", "number");
    this.node.append(this.position, name, this.reason, this.prompt, this.waited);
  }

  update(data, position, words) {
    this.node.dataset.blocked = data.blocked;
    this.position.textContent = position;
    if (this.reason.textContent !== words) this.reason.textContent = words;
    this.waited.textContent = duration(data.seconds);
  }
}

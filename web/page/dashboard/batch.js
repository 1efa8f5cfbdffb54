// The running batch: one row per sequence, with a bar that grows with its tokens. A row that left stays, faded, for a
// moment, so that short answers are visible.

import { make } from "../dom.js";
import { colourRow, requestCell } from "./request.js";
import { count, duration } from "./words.js";

const LINGER_MS = 450; // two views
const PARTS = ["cached", "computed", "todo", "generated"];

export class BatchTable {
  #body;
  #scaleLabel;
  #rows = new Map(); // sequence -> Row
  #scale = 0;

  constructor(body, scaleLabel) {
    this.#body = body;
    this.#scaleLabel = scaleLabel;
  }

  // Another server may use the same numbers for other sequences.
  clear() {
    this.#rows.clear();
    this.#body.replaceChildren();
  }

  // `waiting`: sequences in the queue. Returns how many rows are shown, including those that left.
  update(rows, waiting, now) {
    this.#fit(rows);
    const present = new Set(rows.map((row) => row.sequence));
    for (const [sequence, row] of this.#rows) {
      if (present.has(sequence)) continue;
      row.leave(waiting.has(sequence) ? "preempted" : "ended", now);
      if (now - row.left > LINGER_MS) {
        row.node.remove();
        this.#rows.delete(sequence);
      }
    }
    let next = this.#body.firstChild;
    for (const data of rows) {
      let row = this.#rows.get(data.sequence);
      if (!row) {
        row = new Row(data);
        this.#rows.set(data.sequence, row);
      }
      row.update(data, this.#scale);
      while (next?.dataset.state === "left" && next !== row.node) next = next.nextSibling;
      if (next === row.node) next = next.nextSibling;
      else this.#body.insertBefore(row.node, next);
    }
    return this.#rows.size;
  }

  // Bars share one scale. It grows in steps, so that bars do not shrink all the time.
  #fit(rows) {
    const longest = rows.reduce((most, row) => Math.max(most, row.prompt + (row.generated ?? 0)), 0);
    if (longest === 0) return;
    let scale = 64;
    while (scale < longest) scale *= scale % 3 === 0 ? 4 / 3 : 1.5; // 64, 96, 128, 192, 256 …
    if (scale === this.#scale || (scale < this.#scale && longest > this.#scale / 2)) return;
    this.#scale = scale;
    this.#scaleLabel.textContent = `Tokens, to ${count(scale)}`;
  }
}

class Row {
  constructor(data) {
    this.node = make("tr");
    colourRow(this.node, data);
    this.state = make("td", "state");
    const bar = make("div", "bar");
    this.parts = PARTS.map((part) => make("i", part));
    bar.append(...this.parts);
    const wide = make("td", "wide");
    wide.append(bar);
    [this.prompt, this.generated, this.blocks, this.age] = ["", "", "roomy", "roomy"].map((extra) => make("td", `number ${extra}`));
    this.node.append(requestCell(data), this.state, wide, this.prompt, this.generated, this.blocks, this.age);
  }

  update(data, scale) {
    const { prompt, cached = 0, computed, generated = 0 } = data;
    const done = Math.min(Math.max(computed, cached), prompt);
    const lengths = [cached, done - cached, prompt - done, generated];
    lengths.forEach((length, index) => {
      this.parts[index].style.width = `${(100 * length) / scale}%`;
    });
    this.node.dataset.state = data.state;
    put(this.state, data.blocked ? `${data.state}, no ${data.blocked}` : data.state);
    put(this.prompt, count(prompt));
    this.prompt.title = cached ? `${count(cached)} of them cached` : "";
    put(this.generated, count(generated));
    this.generated.title = `${count(data.limit - prompt)} at most`;
    put(this.blocks, count(data.blocks ?? 0));
    put(this.age, duration(data.seconds));
    this.left = 0;
  }

  leave(how, now) {
    if (this.left) return;
    this.left = now;
    this.node.dataset.state = "left";
    this.state.textContent = how;
  }
}

// Sets a text only if it changed: the same text costs no layout.
function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Where a step's time goes: the mean of each part over the latest steps, from counters that only grow.

import { make } from "../dom.js";
import { count, duration } from "./words.js";

// The worker's parts run one after the other; those of the front run beside them.
const PARTS = [
  ["Forward pass", "worker", (d) => d.model_seconds],
  ["Batch and sampling", "worker", (d) => d.worker_seconds - d.model_seconds],
  ["Link, waiting", "worker", (d) => d.link_seconds],
  ["Scheduler", "front", (d) => d.plan_seconds],
  ["Text, sockets", "front", (d) => d.text_seconds],
];

export class StepParts {
  #note;
  #rows;

  constructor(body, note) {
    this.#note = note;
    this.#rows = PARTS.map(([name, lane]) => {
      const row = make("tr");
      const title = make("th", "", name);
      title.scope = "row";
      const bar = make("i", lane);
      const cell = make("td", "wide");
      const track = make("div", "track");
      track.append(bar);
      cell.append(track);
      const number = make("td", "number", "–");
      row.append(title, cell, number);
      body.append(row);
      return { bar, number };
    });
  }

  // `change`: how much the counters grew, with `steps` above 0; null if there was no step.
  // Returns the seconds of one step in the worker.
  update(change) {
    if (change === null) {
      if (this.#note.textContent) this.#note.textContent = "idle: the last steps";
      return null;
    }
    const each = PARTS.map(([, , part]) => Math.max(0, part(change) / change.steps));
    const worker = each[0] + each[1] + each[2];
    const whole = Math.max(worker, ...each) || 1;
    let start = 0;
    each.forEach((seconds, index) => {
      const { bar, number } = this.#rows[index];
      const inWorker = PARTS[index][1] === "worker";
      bar.style.marginLeft = `${inWorker ? (100 * start) / whole : 0}%`;
      bar.style.width = `${(100 * seconds) / whole}%`;
      number.textContent = duration(seconds);
      if (inWorker) start += seconds;
    });
    const tokens = (change.prefill_tokens + change.generated_tokens) / change.steps;
    this.#note.textContent = `mean of ${count(change.steps)}, ${tokens.toFixed(tokens < 10 ? 1 : 0)} tokens each`;
    return each[0] + each[1];
  }
}

// Tokens per second over the last minutes, and histograms of latencies.

import { make } from "../dom.js";
import { count, duration, rate } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const WINDOWS = [60, 120, 300]; // seconds; the chart shows the first that holds all samples
const FEWEST_COLUMNS = 8;

// `samples`: [time, counter] in order of time. A sample's rate covers the time since the one before it; over a gap in
// which nobody watched it is the mean. `update` returns how many seconds the chart shows.
export class TimeChart {
  #figure;
  #line;
  #area;
  #top;

  constructor(figure) {
    this.#figure = figure;
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 1000 100");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    this.#area = document.createElementNS(SVG, "path");
    this.#area.setAttribute("class", "area");
    this.#line = document.createElementNS(SVG, "path");
    this.#line.setAttribute("class", "line");
    svg.append(this.#area, this.#line);
    this.#top = make("span", "top-value");
    figure.setAttribute("role", "img");
    figure.append(this.#top, svg);
  }

  update(samples, now) {
    const known = samples.length > 0 ? now - samples[0][0] : 0;
    const window = WINDOWS.find((seconds) => seconds >= known) ?? WINDOWS.at(-1);
    const begin = now - window;
    const steps = [];
    for (let index = 1; index < samples.length; index += 1) {
      const [before, had] = samples[index - 1];
      const [time, has] = samples[index];
      if (time > begin && time > before) steps.push([Math.max(before, begin), time, (has - had) / (time - before)]);
    }
    const most = steps.reduce((top, [, , value]) => Math.max(top, value), 0);
    const top = nice(most);
    const x = (time) => ((1000 * (time - begin)) / window).toFixed(1);
    const y = (value) => (100 - (98 * value) / top).toFixed(1);
    const points = steps.flatMap(([from, to, value]) => [`${x(from)},${y(value)}`, `${x(to)},${y(value)}`]);
    this.#line.setAttribute("d", points.length ? `M${points.join("L")}` : "");
    this.#area.setAttribute("d", points.length ? `M${x(steps[0][0])},100L${points.join("L")}L${x(steps.at(-1)[1])},100Z` : "");
    this.#top.textContent = most ? `${count(top)}` : "";
    this.#figure.setAttribute("aria-label", `At most ${rate(most)} tokens per second, now ${rate(steps.at(-1)?.[2] ?? 0)}`);
    return window;
  }
}

function nice(value) {
  if (value <= 10) return 10;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((factor) => factor * power).find((top) => top >= value);
}

export class HistogramChart {
  #figure;
  #note;
  #word;
  #shown = "";

  constructor(figure, note, word) {
    this.#figure = figure;
    this.#note = note;
    this.#word = word;
    figure.setAttribute("role", "img");
  }

  update({ bounds, counts }) {
    const total = counts.reduce((sum, number) => sum + number, 0);
    const key = counts.join();
    if (key === this.#shown) return;
    this.#shown = key;
    if (total === 0) {
      this.#note.textContent = "";
      this.#figure.replaceChildren(make("p", "empty", "None yet."));
      this.#figure.setAttribute("aria-label", "None yet");
      return;
    }
    const half = duration(quantile(0.5, bounds, counts, total));
    const late = duration(quantile(0.99, bounds, counts, total));
    this.#note.textContent = `half within ${half}, 99 % within ${late}`;
    this.#figure.setAttribute("aria-label", `${count(total)} ${this.#word}: half within ${half}, 99 percent within ${late}`);
    const [first, last] = span(counts);
    const most = Math.max(...counts);
    const columns = counts.slice(first, last + 1).map((number, offset) => {
      const bound = bounds[first + offset];
      const column = make("div", "column");
      const bar = make("i");
      bar.style.height = `${(100 * number) / most}%`;
      if (number) bar.className = "some";
      const box = make("div", "box");
      box.append(bar);
      column.append(box, make("span", "", bound === undefined ? ">" : short(bound)));
      column.title = `${count(number)} ${bound === undefined ? "took longer" : `took up to ${duration(bound)}`}`;
      return column;
    });
    this.#figure.replaceChildren(...columns);
  }
}

// The buckets to show: the filled ones and one neighbour on each side, but at least FEWEST_COLUMNS.
function span(counts) {
  let first = Math.max(0, counts.findIndex(Boolean) - 1);
  let last = Math.min(counts.length - 1, counts.findLastIndex(Boolean) + 1);
  while (last - first + 1 < Math.min(FEWEST_COLUMNS, counts.length)) {
    if (last < counts.length - 1) last += 1;
    else first -= 1;
  }
  return [first, last];
}

// Assumes that observations are spread evenly within a bucket; above the last bound, that bound is the best estimate.
function quantile(share, bounds, counts, total) {
  let before = 0;
  for (let index = 0; index < bounds.length; index += 1) {
    if (before + counts[index] >= share * total) {
      const low = index ? bounds[index - 1] : 0;
      return low + ((bounds[index] - low) * (share * total - before)) / counts[index];
    }
    before += counts[index];
  }
  return bounds.at(-1);
}

const short = (seconds) => (seconds < 1 ? `${+(seconds * 1000).toFixed(1)}` : `${seconds}s`);

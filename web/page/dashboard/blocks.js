// The KV blocks as a map: one cell per block, or per several. The server sends at most 1,024 cells for any number of
// blocks, so that drawing costs the same for a thousand blocks and for a million.

import { nameOf } from "./request.js";
import { colourOf, count } from "./words.js";

const SEVERAL = -1;
const WIDEST = 30; // pixels of a cell

export class BlockMap {
  #canvas;
  #tip;
  #map = null;
  #names = new Map(); // request -> its name
  #columns = 0;
  #colours = null;

  constructor(canvas, tip) {
    this.#canvas = canvas;
    this.#tip = tip;
    new ResizeObserver(() => this.#draw()).observe(canvas.parentElement);
    new MutationObserver(() => this.#themeChanged()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#themeChanged());
    canvas.addEventListener("pointermove", (event) => this.#point(event));
    canvas.addEventListener("pointerleave", () => {
      tip.hidden = true;
    });
  }

  update(map, rows) {
    this.#map = map;
    this.#names = new Map(rows.map((row) => [row.request, nameOf(row)]));
    const words = `${count(map.total)} KV blocks: ${count(map.owned)} owned, ${count(map.cached)} cached, ${count(map.free)} free`;
    if (this.#canvas.getAttribute("aria-label") !== words) this.#canvas.setAttribute("aria-label", words);
    this.#draw();
  }

  #draw() {
    if (!this.#map || this.#map.total === 0) return;
    const { owner, cell_owned, cell_cached, blocks_per_cell, total } = this.#map;
    const { clientWidth: width, clientHeight: height } = this.#canvas.parentElement;
    const columns = fit(owner.length, width, height);
    const pitch = width / columns;
    const context = this.#surface(width, height);
    const side = Math.max(1, pitch - (pitch > 9 ? 2 : 1));
    this.#columns = columns;
    this.#colours ??= palette(this.#canvas);
    owner.forEach((who, cell) => {
      const size = Math.min(blocks_per_cell, total - cell * blocks_per_cell);
      const x = (cell % columns) * pitch;
      const y = Math.floor(cell / columns) * pitch;
      const put = (colour, share) => {
        context.globalAlpha = share;
        context.fillStyle = colour;
        context.fillRect(x, y, side, side);
      };
      put(this.#colours.free, 1);
      if (cell_cached[cell]) put(this.#colours.kept, 0.35 + (0.65 * cell_cached[cell]) / size);
      if (cell_owned[cell]) put(who > 0 ? colourOf(who) : this.#colours.several, 0.45 + (0.55 * cell_owned[cell]) / size);
    });
    context.globalAlpha = 1;
  }

  // The canvas in device pixels; setting its size also clears it.
  #surface(width, height) {
    const ratio = devicePixelRatio || 1;
    this.#canvas.width = Math.round(width * ratio);
    this.#canvas.height = Math.round(height * ratio);
    const context = this.#canvas.getContext("2d");
    context.scale(ratio, ratio);
    return context;
  }

  #themeChanged() {
    this.#colours = null;
    this.#draw();
  }

  #point(event) {
    if (!this.#map) return;
    const { owner, cell_owned, cell_cached, blocks_per_cell, total } = this.#map;
    const pitch = this.#canvas.clientWidth / this.#columns;
    const cell = Math.floor(event.offsetY / pitch) * this.#columns + Math.floor(event.offsetX / pitch);
    this.#tip.hidden = !(cell >= 0 && cell < owner.length);
    if (this.#tip.hidden) return;
    const first = cell * blocks_per_cell;
    const last = Math.min(first + blocks_per_cell, total) - 1;
    const who = owner[cell] === SEVERAL ? "several requests" : `request ${this.#names.get(owner[cell]) ?? "just ended"}`;
    const parts = [first === last ? `Block ${count(first)}` : `Blocks ${count(first)}–${count(last)}`];
    if (cell_owned[cell]) parts.push(blocks_per_cell === 1 ? who : `${cell_owned[cell]} owned, most by ${who}`);
    if (cell_cached[cell]) parts.push(blocks_per_cell === 1 ? "cached" : `${cell_cached[cell]} cached`);
    if (parts.length === 1) parts.push("free");
    this.#tip.textContent = parts.join(" · ");
    const left = Math.min(event.offsetX, this.#canvas.clientWidth - this.#tip.offsetWidth);
    this.#tip.style.transform = `translate(${Math.max(0, left)}px, ${event.offsetY + 16}px)`;
  }
}

// The number of columns that makes cells nearly as large as possible and leaves little of the last line empty.
function fit(cells, width, height) {
  const lines = (columns) => Math.ceil(cells / columns);
  let least = Math.max(1, Math.ceil(width / WIDEST));
  while (least < cells && (lines(least) * width) / least > height) least += 1;
  let best = least;
  for (let columns = least + 1; columns <= least * 1.2; columns += 1) {
    if (lines(columns) * columns < lines(best) * best) best = columns;
  }
  return best;
}

// The theme's colours for the canvas: a probe element resolves the style sheet's names.
function palette(canvas) {
  const probe = document.createElement("i");
  canvas.parentElement.append(probe);
  const resolve = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const colours = { free: resolve("--cell-free"), kept: resolve("--cell-kept"), several: resolve("--cell-several") };
  probe.remove();
  return colours;
}

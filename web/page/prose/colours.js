// Colours for code, line by line and in idle time. CodeMirror's modes keep a state from one line to the next, so a line
// that has its colours is never looked at again, however long the code grows. A mode is loaded when first needed.

import { LineStream } from "./line.js";
import { modeOf } from "./languages.js";

const LONGEST_LINE = 1000; // characters; a longer one gets no colours: some modes take quadratic time in a line
const SLICE_LINES = 20; // between two looks at the clock
const PATIENCE_MS = 300; // a busy page colours a slice after this time all the same

const ATTEMPTS = 10; // of a mode to change its state without reading, before it is pushed on

// The colour of each style that modes name; any other keeps the colour of the text.
const STYLES = {
  keyword: "keyword modifier controlKeyword definitionKeyword operatorKeyword self",
  string: "string string-2 character regexp special inserted",
  number: "number atom bool null unit color",
  comment: "comment lineComment blockComment quote",
  name: "def definition tag tagName heading header",
  type: "type typeName builtin standard className attribute attributeName",
  meta: "meta annotation processingInstruction qualifier labelName macroName deleted",
};
const COLOURS = new Map(Object.entries(STYLES).flatMap(([colour, styles]) => styles.split(" ").map((style) => [style, colour])));

const waiting = new Set(); // code blocks with lines to colour
const painters = new WeakMap(); // code block -> its Painter, or null where its language has no mode
let scheduled = false;

export function colourSoon(block) {
  waiting.add(block);
  if (scheduled) return;
  scheduled = true;
  if (window.requestIdleCallback) requestIdleCallback(paint, { timeout: PATIENCE_MS });
  else setTimeout(() => paint({ timeRemaining: () => 0 }), 50);
}

function paint(deadline) {
  scheduled = false;
  for (const block of waiting) {
    if (!painters.has(block)) {
      painters.set(block, null);
      modeOf(block.language).then((mode) => {
        if (!mode) return;
        painters.set(block, new Painter(block, mode));
        colourSoon(block);
      });
    }
    const painter = painters.get(block);
    while (painter?.paintLines(SLICE_LINES)) {
      if (deadline.timeRemaining() < 2) return colourSoon(block);
    }
    waiting.delete(block);
  }
}

class Painter {
  #block;
  #mode;
  #state;
  #piece = 0; // pieces before it have all their colours
  #atLineEnd = false; // the last line has its colours, its newline is still to come

  constructor(block, mode) {
    this.#block = block;
    this.#mode = mode;
    this.#state = mode.startState?.(4) ?? {};
  }

  // Colours the next lines of one piece. False when there is none to colour.
  paintLines(count) {
    const { pieces, complete } = this.#block;
    const piece = pieces[this.#piece];
    if (!piece) return false;
    const text = piece.plain.data;
    const last = this.#piece === pieces.length - 1;
    const nodes = [];
    let at = 0;
    while (at < text.length && count > 0) {
      const newline = text.indexOf("\n", at);
      if (newline < 0 && last && !complete) break;
      const end = newline < 0 ? text.length : newline;
      if (end > 0 || !this.#atLineEnd) this.#paintLine(text.slice(at, end), nodes);
      this.#atLineEnd = newline < 0;
      if (newline >= 0) nodes.push("\n");
      at = newline < 0 ? end : newline + 1;
      count -= 1;
    }
    if (at > 0) {
      piece.plain.before(...nodes);
      piece.plain.deleteData(0, at);
    }
    if (piece.plain.length === 0 && !last) {
      this.#piece += 1;
      return true;
    }
    return at > 0 && piece.plain.length > 0;
  }

  #paintLine(line, nodes) {
    if (line.length > LONGEST_LINE) {
      nodes.push(line);
      return;
    }
    if (!line) this.#mode.blankLine?.(this.#state, 4);
    const stream = new LineStream(line);
    let attempts = 0;
    while (!stream.eol()) {
      const style = this.#token(stream);
      if (stream.pos === stream.start) {
        attempts += 1;
        if (attempts < ATTEMPTS) continue;
        stream.next();
      }
      attempts = 0;
      const colour = style?.split(/[ .]/).map((word) => COLOURS.get(word)).findLast(Boolean);
      nodes.push(colour ? coloured(colour, stream.current()) : stream.current());
      stream.start = stream.pos;
    }
  }

  #token(stream) {
    try {
      return this.#mode.token(stream, this.#state);
    } catch {
      stream.skipToEnd(); // code that its mode cannot read: without colours
      return null;
    }
  }
}

function coloured(colour, text) {
  const node = document.createElement("span");
  node.className = `c-${colour}`;
  node.textContent = text;
  return node;
}

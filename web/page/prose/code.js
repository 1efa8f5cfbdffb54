// A code block that grows: new text is appended, what stands is never rendered again.
//
// Its text lies in pieces of some lines, each a block of its own, so that the browser lays out only the last one. The
// end of a piece that has no colours yet is one text node; `colours.js` takes lines off its front.

import { colourSoon } from "./colours.js";

const PIECE_LINES = 40;
const PIECE_CHARACTERS = 4000; // a longer line is shown in several rows; it is copied as one

const blocks = new WeakMap(); // node -> CodeBlock
export const codeBlockOf = (node) => blocks.get(node);

export class CodeBlock {
  #newline = false; // left out at the end

  constructor(language, text = "") {
    this.language = language;
    this.text = "";
    this.complete = false; // true: the last line is whole
    this.node = element("div", "code");
    this.node.dir = "ltr";
    const head = element("div", "code-head");
    const copy = element("button", "small-button", "Copy");
    copy.type = "button";
    copy.dataset.copy = "code";
    head.append(element("span", "", language || "text"), copy);
    const pre = document.createElement("pre");
    pre.tabIndex = 0; // it scrolls sideways, so keyboards must reach it
    this.code = document.createElement("code");
    pre.append(this.code);
    this.node.append(head, pre);
    this.pieces = []; // { node, plain: the text node without colours, lines, length }
    blocks.set(this.node, this);
    this.append(text);
  }

  // The newline at the very end is left out until more follows: it ends the last line, and is not copied.
  append(added) {
    if (!added) return;
    this.text += added;
    this.complete = added.endsWith("\n");
    const text = (this.#newline ? "\n" : "") + (this.complete ? added.slice(0, -1) : added);
    this.#newline = this.complete;
    let newline = -1;
    for (let at = 0, end = 0; at < text.length; at = end) {
      const piece = this.#openPiece();
      if (newline < at) newline = (text.indexOf("\n", at) + 1 || text.length + 1) - 1;
      end = Math.min(newline + 1, text.length, at + PIECE_CHARACTERS - piece.length);
      piece.plain.appendData(text.slice(at, end));
      piece.length += end - at;
      if (end === newline + 1) piece.lines += 1;
    }
    colourSoon(this);
  }

  finish() {
    this.complete = true;
    colourSoon(this);
  }

  // Takes over the text of a later rendering of the same block. False if it is no longer the same.
  become(later) {
    if (!later || later.language !== this.language || !later.text.startsWith(this.text)) return false;
    this.append(later.text.slice(this.text.length));
    return true;
  }

  #openPiece() {
    const last = this.pieces.at(-1);
    if (last && last.lines < PIECE_LINES && last.length < PIECE_CHARACTERS) return last;
    const piece = { node: element("span", "piece"), plain: document.createTextNode(""), lines: 0, length: 0 };
    piece.node.append(piece.plain);
    this.code.append(piece.node);
    this.pieces.push(piece);
    return piece;
  }
}

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// A growing Markdown text in an element. Blocks that can no longer change are settled: their source is forgotten and
// their nodes are never looked at again. Only the tail behind them is parsed anew when text arrives, so the work for a
// text is linear in its length. Three things keep the tail short: an open code block only takes text, a list settles
// its items and a table its rows, and a block longer than LONGEST is cut.

import { codeBlockOf } from "./code.js";
import { OpenCode } from "./fence.js";
import { blockNode } from "./nodes.js";
import { parse } from "./parser.js";
import { reconcile } from "./reconcile.js";

const LONGEST = 16_384; // characters that are parsed at once
const SHORT = 2048; // a tail up to this length is parsed at every update, a longer one when it grew by 1/16
const LONGEST_HEAD = 1024; // of a table whose rows settle: its head is parsed again with them
const HOLDS_TEXT = new Set(["UL", "OL", "LI", "P", "BLOCKQUOTE", "H2", "H3", "H4", "H5", "H6", "DIV", "TABLE", "TBODY", "TR", "TD"]);

export class MarkdownStream {
  work = 0; // characters parsed and characters appended: what the time for a text depends on
  #root;
  #settled; // children of #root before this index are final
  #tail = ""; // the source of the others
  #parsed = 0; // how many characters of #tail were there when it was last parsed
  #code = null; // the OpenCode that takes all text
  #open = null; // the last settled child, if it is a list or table that goes on: { list, settled, head }
  #outline = []; // levels of the settled headings that the next block stands under
  links; // label -> link definition, of the text before #tail
  #tailLinks = {}; // of #tail; they may still grow

  // Shows its text behind the children that `root` has.
  constructor(root, links) {
    this.links = links;
    this.#root = root;
    this.#settled = root.childNodes.length;
  }

  append(text) {
    const rest = this.#code ? this.#feed(text) : text;
    if (!rest) return;
    this.#tail += rest;
    const grown = this.#tail.length - this.#parsed;
    if (this.#tail.length <= SHORT || grown * 16 >= this.#tail.length) this.#parse();
    else this.#showAsWritten(rest);
  }

  // Shows everything as if the text ended here. More may follow all the same.
  finish() {
    if (this.#tail.length > this.#parsed) this.#parse();
    if (this.#code?.finish()) this.#code = null;
    Object.assign(this.links, this.#tailLinks);
    for (const node of this.#root.querySelectorAll(".code")) codeBlockOf(node).finish();
  }

  get definesLinks() {
    return Object.keys(this.links).length > 0;
  }

  // Gives text to the open code block; returns what stands behind its end.
  #feed(text) {
    this.work += text.length;
    const rest = this.#code.take(text);
    if (rest !== null) this.#code = null;
    return rest ?? "";
  }

  #showAsWritten(text) {
    this.work += text.length;
    let node = this.#root;
    while (HOLDS_TEXT.has(node.lastElementChild?.tagName) && !codeBlockOf(node.lastElementChild)) node = node.lastElementChild;
    if (node !== this.#root) node.append(text);
  }

  #parse() {
    while (this.#tail && this.#parseFront());
    this.#parsed = this.#tail.length;
  }

  // Parses the front of the tail, shows it, and settles what is final. True if there is more to parse.
  #parseFront() {
    const cut = this.#tail.length > LONGEST;
    const head = this.#open?.head ?? "";
    const text = head + (cut ? this.#tail.slice(0, cutBefore(this.#tail, LONGEST)) : this.#tail);
    this.work += text.length;
    const lines = lineStarts(text);
    const isWhole = (line) => cut || line + 1 < lines.length; // what the line begins is certain
    this.#tailLinks = {};
    const blocks = blocksOf(parse(text, this.#tailLinks, this.links));
    const outline = [...this.#outline];
    for (const block of blocks) {
      block.node = blockNode(block.tokens, text.slice(lines[block.line], lines[block.end]), outline);
      block.outline = [...outline];
    }

    // A block is final once it is certain what follows it. The first that is not final is `last`.
    const isCertain = (block) => isWhole(block.tokens[0].type === "math_block" ? block.end - 1 : block.line);
    const kept = blocks.findIndex((_, index) => index === blocks.length - 1 || !isCertain(blocks[index + 1]));
    const last = blocks[kept];
    if (last?.tokens[0].type === "fence" && last.line + 1 < lines.length && !last.tokens[0].info.includes("|")) {
      this.#show(blocks.slice(0, kept), kept);
      return this.#openCode(last.tokens[0], text, lines, last.line, head.length);
    }
    const done = last ? finalChildren(last, lines, isWhole) : 0;
    if (cut && !done && kept <= 0) {
      this.#show(blocks, blocks.length); // one long block, or nothing to show: settled as it is
      this.#forget(text.length - head.length);
      return true;
    }
    this.#show(blocks, Math.max(0, kept));
    if (done) this.#settleChildren(last, done, text.slice(lines[last.line], lines[last.line + 2]));
    if (last) this.#forget(lines[done ? last.children[done] : last.line] - head.length);
    return cut;
  }

  // Drops the first characters of the tail: they are settled, and so are the links that they define.
  #forget(count) {
    if (count <= 0) return;
    if (Object.keys(this.#tailLinks).length > 0) {
      this.work += count;
      parse(`${this.#tail.slice(0, count)}\n\n`, this.links, {}); // an empty line, so that nothing in it is open
    }
    this.#tail = this.#tail.slice(count);
  }

  // Shows `blocks` behind the settled ones, and settles the first `final` of them. If a list or table goes on, the
  // first block holds its new children.
  #show(blocks, final) {
    let nodes = blocks.map((block) => block.node);
    if (final > 0) this.#outline = blocks[final - 1].outline;
    if (this.#open && nodes.length > 0) {
      const fresh = listOf(nodes[0]);
      if (fresh?.className === "loose") this.#open.list.className = "loose";
      reconcile(this.#open.list, this.#open.settled, [...(fresh?.childNodes ?? [])]);
      nodes = nodes.slice(1);
      if (final > 0) {
        this.#open = null;
        final -= 1;
      }
    }
    reconcile(this.#root, this.#settled, nodes);
    this.#settled += final;
  }

  // Settles the first `count` children of the list or table behind the settled ones, or of the one that goes on.
  #settleChildren(block, count, head) {
    if (!this.#open) {
      const list = listOf(this.#root.childNodes[this.#settled]);
      this.#open = { list, settled: 0, head: block.tokens[0].type === "table_open" ? head : "" };
      this.#settled += 1;
    }
    this.#open.settled += count;
  }

  #openCode(token, text, lines, line, headLength) {
    this.#open = null;
    this.#code = new OpenCode(token.info.trim().split(/\s+/)[0], text.slice(lines[line], lines[line + 1]), token.markup);
    reconcile(this.#root, this.#settled, []);
    this.#root.append(this.#code.block.node);
    this.#settled += 1;
    this.#forget(lines[token.markup ? line + 1 : line] - headLength); // bare JSON has no line before it
    this.#tail = this.#feed(this.#tail);
    return this.#tail !== "";
  }
}

// The end of the last line that ends at or before `limit`, or `limit` in a line longer than that.
function cutBefore(text, limit) {
  return text.lastIndexOf("\n", limit - 1) + 1 || limit;
}

// Where each line starts; a last line without its end counts.
function lineStarts(text) {
  const starts = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
  return starts;
}

// The top-level blocks: { tokens, line, end, children }, in lines; `children` are the lines of its items or rows.
function blocksOf(tokens) {
  const blocks = [];
  let isBody = false;
  for (const token of tokens) {
    if (token.level === 0 && token.nesting >= 0) {
      blocks.push({ tokens: [], line: token.map[0], end: token.map[1], children: [] });
      isBody = false;
    }
    const block = blocks.at(-1);
    block.tokens.push(token);
    if (token.type === "tbody_open") isBody = true;
    if ((token.type === "list_item_open" && token.level === 1) || (isBody && token.type === "tr_open")) block.children.push(token.map[0]);
  }
  return blocks;
}

// How many items of a list or rows of a table can no longer change.
function finalChildren({ tokens, line, children }, lines, isWhole) {
  if (tokens[0].type === "table_open" && lines[line + 2] - lines[line] > LONGEST_HEAD) return 0;
  if (tokens[0].type === "blockquote_open") return 0;
  let count = 0;
  while (count + 1 < children.length && isWhole(children[count + 1])) count += 1;
  return count;
}

// The element that holds a list's items or a table's rows.
const listOf = (node) => (node.classList.contains("table") ? node.querySelector("tbody") : node);

// Tokens of the parser to DOM nodes. Model text becomes only text nodes and the attributes set here, never markup.

import { CodeBlock } from "./code.js";
import { formula } from "./mathematics.js";
import { DEEPEST } from "./parser.js";

const ALIGNED = { "text-align:left": "left", "text-align:center": "center", "text-align:right": "right" };

// The node of one top-level block. `lines` is its source, shown as written if it nests too deeply. `outline` holds the
// levels of the headings that the block stands under, as the model chose them, and is carried on.
export function blockNode(tokens, lines, outline) {
  if (tokens.some((token) => token.level >= DEEPEST - 1)) {
    const node = textBlock("p", lines);
    node.className = "as-written";
    return directed(node, lines);
  }
  const root = document.createDocumentFragment();
  let open = root;
  for (const token of tokens) {
    if (token.nesting > 0) open = opening(open, token, outline);
    else if (token.nesting < 0) open = token.type === "table_close" ? open.parentNode.parentNode : open.parentNode;
    else leaf(open, token);
    if (token.type === "paragraph_open" && !token.hidden && open.parentNode.localName === "li") open.parentNode.parentNode.className = "loose";
  }
  return directed(root.firstChild, lines);
}

const RIGHT_TO_LEFT = /^[^\p{L}]*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

// As dir="auto" would, but that makes the browser read the whole text again for each node added to it.
function directed(node, text) {
  if (RIGHT_TO_LEFT.test(text) && !node.dir) node.dir = "rtl";
  return node;
}

// Appends the element that `token` opens, and returns it.
function opening(parent, token, outline) {
  const level = Number(/^h([1-6])$/.exec(token.tag)?.[1]);
  const node = document.createElement(level ? headingTag(level, outline) : token.tag);
  if (level) node.className = `level-${level}`;
  if (token.type === "ordered_list_open" && token.attrGet("start") !== null) node.start = token.attrGet("start");
  if (token.tag === "th") node.scope = "col";
  const aligned = ALIGNED[token.attrGet("style")];
  if (aligned) node.className = aligned;
  parent.append(token.type === "table_open" ? scrollable(node) : node);
  return node;
}

// Many answers begin with ###. Who listens to the page wants an outline without gaps: the first heading is an h2.
function headingTag(level, outline) {
  while (outline.at(-1) >= level) outline.pop();
  outline.push(level);
  return `h${Math.min(6, outline.length + 1)}`;
}

// A table may be wider than the page; keyboards must reach what scrolls sideways.
function scrollable(table) {
  const node = document.createElement("div");
  node.className = "table";
  node.tabIndex = 0;
  node.setAttribute("role", "group");
  node.setAttribute("aria-label", "Table");
  node.append(table);
  return node;
}

function leaf(parent, token) {
  switch (token.type) {
    case "fence":
    case "code_block":
      parent.append(new CodeBlock(token.info.trim().split(/\s+/)[0], token.content).node);
      break;
    case "math_block":
      parent.append(token.info === "open" ? textBlock("pre", token.content) : formula(token.content, true));
      break;
    case "hr":
      parent.append(document.createElement("hr"));
      break;
    case "inline":
      inlineNodes(parent, token.children);
      break;
    default:
      throw new Error(`no node for the token ${token.type}`);
  }
}

function textBlock(tag, text) {
  const node = document.createElement(tag);
  node.textContent = text;
  return node;
}

const TASK = /^\[([ xX])\] /;

function inlineNodes(parent, tokens) {
  const item = parent.parentNode;
  const task = item?.tagName === "LI" && item.firstChild === parent && tokens[0]?.type === "text" && TASK.exec(tokens[0].content);
  if (task) {
    item.className = "task";
    parent.append(checkbox(task[1] !== " "));
  }
  let open = parent;
  for (const token of tokens) {
    const content = task && token === tokens[0] ? token.content.slice(task[0].length) : token.content;
    if (token.nesting > 0) open = open.appendChild(inlineOpening(token));
    else if (token.nesting < 0) open = open.parentNode;
    else open.append(inlineLeaf(token, content));
  }
}

function checkbox(checked) {
  const box = document.createElement("input");
  box.type = "checkbox";
  box.disabled = true;
  box.toggleAttribute("checked", checked); // the attribute: it is what two nodes are compared by
  box.setAttribute("aria-label", checked ? "Done" : "To do");
  return box;
}

function inlineOpening(token) {
  if (token.tag !== "a") return document.createElement(token.tag);
  return anchor(token.attrGet("href"), token.attrGet("title"));
}

function anchor(href, title) {
  const node = document.createElement("a");
  node.href = href;
  node.target = "_blank";
  node.rel = "noopener noreferrer";
  if (title) node.title = title;
  return node;
}

function inlineLeaf(token, content) {
  switch (token.type) {
    case "softbreak":
    case "hardbreak":
      return document.createElement("br");
    case "code_inline": {
      const node = document.createElement("code");
      node.textContent = content;
      return node;
    }
    case "math_inline":
      return formula(content, token.markup === "$$" || token.markup === "\\[");
    case "image": {
      const node = anchor(token.attrGet("src"), token.attrGet("title")); // the page loads nothing from elsewhere
      node.textContent = content || token.attrGet("src");
      return node;
    }
    default:
      return content;
  }
}

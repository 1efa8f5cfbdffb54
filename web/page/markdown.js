// Markdown as models write it, turned into DOM nodes. Model text becomes only text nodes, never markup; links lead only
// to http and https. `renderMarkdown` may be called again with a longer text: unchanged blocks keep their nodes, so a
// stream repaints only its last block.

const rendered = new WeakMap(); // container -> the blocks that its children show
const DEEPEST = 8; // deeper nesting is shown as written

export function renderMarkdown(container, text) {
  const before = rendered.get(container) ?? [];
  const blocks = splitBlocks(text.replace(/\r\n?/g, "\n").split("\n"));
  blocks.forEach((block, index) => {
    const node = container.children[index];
    if (before[index]?.source === block.source && before[index].kind === block.kind) return;
    if (node && block.kind === "code" && before[index]?.kind === "code" && before[index].language === block.language) {
      node.querySelector("code").textContent = block.text;
    } else if (node) {
      node.replaceWith(blockNode(block, 0));
    } else {
      container.append(blockNode(block, 0));
    }
  });
  while (container.children.length > blocks.length) container.lastElementChild.remove();
  rendered.set(container, blocks);
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(?:\s+|$)/;
const JSON_OBJECT = /^\{\s*"/; // models answer with bare JSON more often than with a fenced block
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function splitBlocks(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const start = at;
    let block;
    if (!line.trim()) {
      at += 1;
      continue;
    }
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (fence) {
      const closing = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
      do at += 1;
      while (at < lines.length && !closing.test(lines[at]));
      block = { kind: "code", language: fence[2], text: lines.slice(start + 1, at).join("\n") };
      at += 1;
    } else if (heading) {
      at += 1;
      block = { kind: "heading", level: heading[1].length, text: heading[2] };
    } else if (RULE.test(line)) {
      at += 1;
      block = { kind: "rule" };
    } else if (QUOTE.test(line)) {
      while (at < lines.length && QUOTE.test(lines[at])) at += 1;
      block = { kind: "quote", lines: lines.slice(start, at).map((quoted) => quoted.replace(QUOTE, "")) };
    } else if (ITEM.test(line)) {
      at = endOfList(lines, at);
      block = { kind: "list", ordered: /\d/.test(ITEM.exec(line)[2]), lines: lines.slice(start, at) };
    } else if (JSON_OBJECT.test(line)) {
      while (at < lines.length && lines[at].trim()) at += 1;
      block = { kind: "code", language: "json", text: lines.slice(start, at).join("\n") };
    } else if (line.includes("|") && at + 1 < lines.length && isTableRule(line, lines[at + 1])) {
      at += 2;
      while (at < lines.length && lines[at].includes("|")) at += 1;
      block = { kind: "table", lines: lines.slice(start, at) };
    } else {
      do at += 1;
      while (at < lines.length && lines[at].trim() && !startsBlock(lines[at]));
      block = { kind: "paragraph", text: lines.slice(start, at).join("\n") };
    }
    blocks.push({ ...block, source: lines.slice(start, at).join("\n") });
  }
  return blocks;
}

function startsBlock(line) {
  const item = ITEM.exec(line);
  return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || RULE.test(line) || (item && item[0] !== line);
}

function isTableRule(head, rule) {
  return TABLE_RULE.test(rule) && rule.includes("-") && cells(head).length === cells(rule).length;
}

function endOfList(lines, start) {
  const ordered = /\d/.test(ITEM.exec(lines[start])[2]);
  const indent = ITEM.exec(lines[start])[1].length;
  let at = start + 1;
  while (at < lines.length) {
    const line = lines[at];
    const item = ITEM.exec(line);
    const deeper = /^\s/.test(line) && line.search(/\S/) > indent;
    if (item && item[1].length <= indent && /\d/.test(item[2]) !== ordered) break;
    if (!line.trim()) {
      const next = lines.slice(at).find((later) => later.trim());
      if (!next || !(ITEM.test(next) || /^\s{2,}/.test(next))) break;
    } else if (!item && !deeper && startsBlock(line)) break;
    at += 1;
  }
  return at;
}

function blockNode(block, depth) {
  switch (block.kind) {
    case "code":
      return codeNode(block);
    case "heading":
      return inline(document.createElement(`h${Math.min(6, block.level + 2)}`), block.text, depth); // below the page's h2
    case "rule":
      return document.createElement("hr");
    case "quote":
      return blocksInto(document.createElement("blockquote"), block.lines, depth + 1);
    case "list":
      return listNode(block, depth);
    case "table":
      return tableNode(block, depth);
    default:
      return inline(document.createElement("p"), block.text, depth);
  }
}

function blocksInto(parent, lines, depth) {
  if (depth > DEEPEST) parent.append(lines.join("\n"));
  else parent.append(...splitBlocks(lines).map((block) => blockNode(block, depth)));
  return parent;
}

function codeNode(block) {
  const node = element("div", "code");
  const head = element("div", "code-head");
  const language = element("span", "", block.language || "text");
  const copy = element("button", "small-button", "Copy");
  copy.type = "button";
  copy.dataset.copy = "code";
  head.append(language, copy);
  const pre = document.createElement("pre");
  pre.tabIndex = 0; // it scrolls sideways, so keyboards must reach it
  pre.append(element("code", "", block.text));
  node.append(head, pre);
  return node;
}

function listNode(block, depth) {
  const node = document.createElement(block.ordered ? "ol" : "ul");
  const first = ITEM.exec(block.lines[0]);
  const start = Number.parseInt(first[2], 10);
  if (block.ordered && start !== 1) node.start = start;
  let item = null;
  const items = [];
  for (const line of block.lines) {
    const match = ITEM.exec(line);
    if (match && match[1].length <= first[1].length + 1) {
      item = { indent: match[0].length, lines: [line.slice(match[0].length)] };
      items.push(item);
    } else {
      item.lines.push(line.slice(Math.min(item.indent, Math.max(0, line.search(/\S|$/)))));
    }
  }
  for (const { lines } of items) {
    const entry = document.createElement("li");
    const parts = splitBlocks(lines);
    if (parts[0]?.kind === "paragraph" && depth < DEEPEST) {
      inline(entry, parts[0].text, depth);
      entry.append(...parts.slice(1).map((part) => blockNode(part, depth + 1)));
    } else {
      blocksInto(entry, lines, depth + 1);
    }
    node.append(entry);
  }
  return node;
}

function tableNode(block, depth) {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  for (const cell of cells(block.lines[0])) head.append(inline(document.createElement("th"), cell, depth));
  const body = table.createTBody();
  for (const line of block.lines.slice(2)) {
    const row = body.insertRow();
    for (const cell of cells(line)) inline(row.insertCell(), cell, depth);
  }
  const node = element("div", "table");
  node.append(table);
  return node;
}

function cells(line) {
  return line
    .trim()
    .replace(/^\||\|$/g, "")
    .split("|")
    .map((cell) => cell.trim());
}

const PAIRS = [
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
];
const ADDRESS = /https?:\/\/[^\s<>"')\]]*[^\s<>"')\].,;:!?]/y;
const SPECIAL = /[\\`*_~[\nh]/g;

function inline(parent, text, depth) {
  let plain = 0; // text before this index is already in the DOM
  let at = 0;
  const put = (node, end) => {
    if (at > plain) parent.append(text.slice(plain, at));
    if (node) parent.append(node);
    plain = at = end;
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const found = SPECIAL.exec(text);
    if (!found) break;
    at = found.index;
    const special = inlineAt(text, at, depth);
    if (special) put(special.node, special.end);
    else at += 1;
  }
  at = text.length;
  put(null, at);
  return parent;
}

function inlineAt(text, at, depth) {
  const character = text[at];
  if (character === "\n") return { node: document.createElement("br"), end: at + 1 };
  if (character === "\\") return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? { node: text[at + 1], end: at + 2 } : null;
  if (character === "`") return codeSpan(text, at);
  if (character === "h") return address(text, at);
  if (depth > DEEPEST) return null;
  if (character === "[") return link(text, at);
  for (const [mark, tag] of PAIRS) {
    if (!text.startsWith(mark, at)) continue;
    const end = closing(text, at, mark);
    if (end < 0) continue;
    const inside = text.slice(at + mark.length, end);
    return { node: inline(document.createElement(tag), inside, depth + 1), end: end + mark.length };
  }
  return null;
}

function closing(text, at, mark) {
  const inWord = (index) => /\w/.test(text[index] ?? "");
  if (!/\S/.test(text[at + mark.length] ?? "") || (mark[0] === "_" && inWord(at - 1))) return -1;
  let end = text.indexOf(mark, at + mark.length + 1);
  while (end >= 0) {
    const doubled = mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark);
    if (/\S/.test(text[end - 1]) && !doubled && !(mark[0] === "_" && inWord(end + mark.length))) return end;
    end = text.indexOf(mark, end + (doubled ? 2 : 1));
  }
  return -1;
}

function codeSpan(text, at) {
  const ticks = /`+/y;
  ticks.lastIndex = at;
  const fence = ticks.exec(text)[0];
  let end = text.indexOf(fence, at + fence.length);
  while (end >= 0 && text[end + fence.length] === "`") end = text.indexOf(fence, end + fence.length + 1);
  if (end < 0) return null;
  return { node: element("code", "", text.slice(at + fence.length, end).trim()), end: end + fence.length };
}

function address(text, at) {
  ADDRESS.lastIndex = at;
  const found = ADDRESS.exec(text);
  if (!found || (at > 0 && /\w/.test(text[at - 1]))) return null;
  const node = anchor(found[0]);
  if (!node) return null;
  node.append(found[0]);
  return { node, end: at + found[0].length };
}

function link(text, at) {
  const middle = text.indexOf("](", at);
  const end = middle < 0 ? -1 : text.indexOf(")", middle);
  if (end < 0) return null;
  const node = anchor(text.slice(middle + 2, end).trim().split(/\s/)[0]);
  if (!node) return null;
  node.textContent = text.slice(at + 1, middle);
  return { node, end: end + 1 };
}

function anchor(target) {
  let url;
  try {
    url = new URL(target);
  } catch {
    return null;
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") return null;
  const node = document.createElement("a");
  node.href = url.href;
  node.target = "_blank";
  node.rel = "noopener noreferrer";
  return node;
}

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

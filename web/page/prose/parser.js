// The dialect of Markdown: CommonMark with tables, strikethrough and bare links, as markdown-it parses them; formulas
// in $…$, $$…$$, \(…\) and \[…\]; and a bare JSON object as a code block, since models often answer with one.
// HTML is text here. A link leads only to http, https or mailto.

import MarkdownIt from "../vendor/markdown-it/markdown-it.js";

export const DEEPEST = 40; // levels of quotes and lists; markdown-it leaves out what is deeper, so that is shown as written
const LONGEST_FORMULA = 100; // lines
const OPENER = /^(\$\$|\\\[)/;

const md = new MarkdownIt({ html: false, linkify: true, breaks: true, maxNesting: DEEPEST });
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false }); // main.py is a file, not a site in Paraguay
md.validateLink = (url) => /^(https?:\/\/|mailto:)/i.test(url.trim());
md.inline.ruler.before("escape", "math", inlineFormula);
md.block.ruler.before("fence", "math", blockFormula, { alt: ["paragraph", "reference", "blockquote", "list"] });
md.block.ruler.before("lheading", "json", bareJson);

// The tokens of `text`. Definitions of links are added to `links`; those in `known` hold as well, and come first.
export function parse(text, links, known) {
  const references = Object.create(known);
  const tokens = md.parse(text, { references });
  Object.assign(links, references);
  return tokens;
}

const CLOSERS = { "$": "$", "$$": "$$", "\\(": "\\)", "\\[": "\\]" };

function openerAt(source, at) {
  const two = source.slice(at, at + 2);
  if (CLOSERS[two]) return two;
  return two[0] === "$" ? "$" : null;
}

function inlineFormula(state, silent) {
  const opener = openerAt(state.src, state.pos);
  if (!opener) return false;
  const start = state.pos + opener.length;
  if (opener === "$" && /\s/.test(state.src[start] ?? " ")) return false;
  const end = closerFrom(state, CLOSERS[opener], start);
  if (end <= start || end + opener.length > state.posMax) return false;
  if (!silent) {
    const token = state.push("math_inline", "math", 0);
    token.content = state.src.slice(start, end).trim();
    token.markup = opener;
  }
  state.pos = end + opener.length;
  return true;
}

// Where the next `closer` stands, or -1. The answer holds for every earlier start too, so it is kept: a text full of
// dollar signs is searched once, not once for each of them.
function closerFrom(state, closer, start) {
  const known = (state.closers ??= {});
  if (known[closer] !== undefined && (known[closer] < 0 || known[closer] >= start)) return known[closer];
  let at = state.src.indexOf(closer, start);
  while (at >= 0 && closer[0] === "$" && !closes(state.src, closer, at)) at = state.src.indexOf(closer, at + 1);
  known[closer] = at;
  return at;
}

// "$5 and $6" has no formula: a closing $ follows its text closely, and no digit follows it.
function closes(source, closer, at) {
  if (source[at - 1] === "\\") return false;
  return closer === "$$" || (!/\s/.test(source[at - 1]) && !/\d/.test(source[at + 1] ?? ""));
}

function blockFormula(state, startLine, endLine, silent) {
  const first = lineAt(state, startLine);
  const opener = first.slice(0, 2);
  if (!OPENER.test(first) || state.sCount[startLine] - state.blkIndent >= 4) return false;
  const closer = CLOSERS[opener];
  const inOneLine = first.length > 3 && first.endsWith(closer);
  if (!inOneLine && first.includes(closer, 2)) return false; // text follows it: a paragraph with a formula
  let line = startLine;
  let content = inOneLine ? first.slice(2, -2) : first.slice(2);
  let closed = inOneLine;
  while (!closed) {
    line += 1;
    if (line >= endLine || line - startLine > LONGEST_FORMULA || state.isEmpty(line)) break;
    const text = lineAt(state, line);
    closed = text.endsWith(closer);
    if (!closed && OPENER.test(text)) return false; // formulas do not nest, and no line is searched twice
    content += `\n${closed ? text.slice(0, -2) : text}`;
  }
  if (!closed && line < endLine) return false;
  if (silent) return true;
  state.line = closed ? line + 1 : line;
  const token = state.push("math_block", "math", 0);
  token.block = true;
  token.content = content.trim();
  token.markup = opener;
  token.info = closed ? "" : "open"; // the rest is still to come
  token.map = [startLine, closed ? state.line : state.line + 1]; // open: its last line is not there yet
  return true;
}

const lineAt = (state, line) => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]).trimEnd();

function bareJson(state, startLine, endLine) {
  const first = lineAt(state, startLine);
  const starts = /^\{\s*"/.test(first) || (first === "{" && startLine + 1 < endLine && lineAt(state, startLine + 1)[0] === '"');
  if (!starts || state.level > 0) return false;
  let line = startLine + 1;
  while (line < endLine && !state.isEmpty(line)) line += 1;
  state.line = line;
  const token = state.push("fence", "code", 0);
  token.info = "json";
  token.markup = ""; // it ends at an empty line
  token.content = `${state.src.slice(state.bMarks[startLine], state.eMarks[line - 1])}\n`;
  token.map = [startLine, line];
  return true;
}

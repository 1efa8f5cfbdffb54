// Reads the text of an open code block up to its end: a closing fence, or an empty line for bare JSON. The start of a
// line that may still become the end is held back; all other text is shown as it comes.

import { CodeBlock } from "./code.js";

const LONGEST_END = 200; // characters of a line that may be the end, so that testing them again and again stays cheap

export class OpenCode {
  #indent; // spaces before the opening fence: as many are taken off each line
  #end; // fits the line that ends the code
  #start; // fits what may become such a line
  #held = "";
  #inLine = false; // the line is shown already, so it is not the end

  // `firstLine` is the source of the line that opens it, `fence` its ``` or ~~~, or "" for bare JSON.
  constructor(language, firstLine, fence) {
    this.block = new CodeBlock(language);
    this.#indent = fence ? /^ {0,3}/.exec(firstLine)[0].length : 0;
    this.#end = fence ? new RegExp(`^ {0,3}[${fence[0]}]{${fence.length},}[ \\t]*$`) : /^[ \t]*$/;
    this.#start = fence ? new RegExp(`^ {0,3}[${fence[0]}]*[ \\t]*$`) : /^[ \t]*$/;
  }

  // Shows `text`. Returns what stands behind the end of the code, or null while it is open.
  take(text) {
    for (let at = 0; at < text.length; ) {
      const newline = text.indexOf("\n", at);
      const end = newline < 0 ? text.length : newline;
      this.#held += text.slice(at, end);
      at = end + 1;
      if (newline >= 0 && !this.#inLine && this.#end.test(this.#held)) return text.slice(at);
      if (newline >= 0) this.#show("\n");
      else if (this.#inLine || this.#held.length > LONGEST_END || !this.#start.test(this.#held)) this.#show("");
    }
    return null;
  }

  // Shows what is held back. True if it was the end of the code.
  finish() {
    if (!this.#inLine && this.#held && this.#end.test(this.#held)) return true;
    if (this.#held) this.#show("");
    return false;
  }

  #show(newline) {
    const shown = this.#inLine ? this.#held : unindented(this.#held, this.#indent);
    this.block.append(shown + newline);
    this.#held = "";
    this.#inLine = newline === "";
  }
}

// The line without its first `indent` columns of white space; a tab reaches to the next multiple of 4.
function unindented(line, indent) {
  let columns = 0;
  let at = 0;
  for (; columns < indent && (line[at] === " " || line[at] === "\t"); at++) columns += line[at] === " " ? 1 : 4 - (columns % 4);
  return " ".repeat(Math.max(0, columns - indent)) + line.slice(at);
}

// One line of code as CodeMirror's modes read it: the interface of its StringStream.

const TAB = 4;

export class LineStream {
  string;
  pos = 0;
  start = 0;
  indentUnit = 4;

  constructor(line) {
    this.string = line;
  }

  eol() {
    return this.pos >= this.string.length;
  }

  sol() {
    return this.pos === 0;
  }

  peek() {
    return this.string.charAt(this.pos) || undefined;
  }

  next() {
    return this.eol() ? undefined : this.string.charAt(this.pos++);
  }

  eat(match) {
    const character = this.peek();
    if (character === undefined || !fits(character, match)) return undefined;
    this.pos += 1;
    return character;
  }

  eatWhile(match) {
    const before = this.pos;
    while (this.eat(match));
    return this.pos > before;
  }

  eatSpace() {
    return this.eatWhile(/[\s\u00a0]/);
  }

  skipToEnd() {
    this.pos = this.string.length;
  }

  skipTo(text) {
    const found = this.string.indexOf(text, this.pos);
    if (found < 0) return undefined;
    this.pos = found;
    return true;
  }

  backUp(count) {
    this.pos -= count;
  }

  match(pattern, consume = true, ignoreCase = false) {
    if (typeof pattern === "string") {
      const part = this.string.slice(this.pos, this.pos + pattern.length);
      const same = ignoreCase ? part.toLowerCase() === pattern.toLowerCase() : part === pattern;
      if (!same) return null;
      if (consume) this.pos += pattern.length;
      return true;
    }
    const found = this.string.slice(this.pos).match(pattern);
    if (!found || found.index > 0) return null;
    if (consume) this.pos += found[0].length;
    return found;
  }

  column() {
    return width(this.string.slice(0, this.start));
  }

  indentation() {
    return width(/^\s*/.exec(this.string)[0]);
  }

  current() {
    return this.string.slice(this.start, this.pos);
  }

  lookAhead() {
    return undefined; // later lines may not be there yet
  }

  baseToken() {
    return undefined;
  }
}

function fits(character, match) {
  if (typeof match === "string") return character === match;
  return match instanceof RegExp ? match.test(character) : match(character);
}

function width(text) {
  let columns = 0;
  for (const character of text) columns += character === "\t" ? TAB - (columns % TAB) : 1;
  return columns;
}

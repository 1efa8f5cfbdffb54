// Text files as part of a question: how they are written into its text, and found there again. Pure.
//
// A question that has files is one text everywhere: in the request, in drafts, exports and searches. Each file is a line
// with its name and a fence that is longer than any in the file; what was typed comes after them.

const FILE = /File: ([^\n]+)\n(`{3,})[^\n`]*\n([\s\S]*?)\n?\2(?:\n\n|$)/y;

// files: [{ name, text }]
export function withFiles(files, typed) {
  return [...files.map(block), typed].filter(Boolean).join("\n\n");
}

// What withFiles was given: { files, typed }.
export function filesIn(content) {
  const files = [];
  let end = 0;
  for (FILE.lastIndex = 0; content.startsWith("File: ", end); end = FILE.lastIndex) {
    const found = FILE.exec(content);
    if (!found) break;
    files.push({ name: found[1], text: found[3] });
  }
  return { files, typed: content.slice(end) };
}

function block({ name, text }) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  const language = /\.([A-Za-z0-9]+)$/.exec(name)?.[1] ?? "";
  return `File: ${name}\n${fence}${language}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}

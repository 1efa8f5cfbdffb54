// One request to the API as a program that runs: for a shell, for Python and for JavaScript. Pure: no page.
//
// Each function takes { base, request, key }: the address that ends with /v1, the body of the chat completion, and
// whether the server wants a key. The key itself is never written out; the programs read OPENAI_API_KEY.

// What OpenAI's Python client takes as arguments of its own; the rest goes into `extra_body`.
const OPENAI = new Set([
  "model", "messages", "temperature", "top_p", "max_tokens", "seed", "stop", "presence_penalty", "frequency_penalty",
  "logit_bias", "logprobs", "top_logprobs", "response_format", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort",
]);

export const SNIPPETS = [
  ["curl", curl],
  ["Python (openai)", python],
  ["JavaScript (openai)", javaScript],
];

// The body comes from standard input: a shell limits the length of an argument, and would need its quotes escaped.
function curl({ base, request, key }) {
  const lines = [`curl ${base}/chat/completions`, "-H 'Content-Type: application/json'"];
  if (key) lines.push('-H "Authorization: Bearer $OPENAI_API_KEY"');
  return `${[...lines, "-d @- <<'JSON'"].join(" \\\n  ")}\n${JSON.stringify(request, null, 2)}\nJSON\n`;
}

function python({ base, request, key }) {
  const entries = Object.entries(request);
  const extra = entries.filter(([name]) => !OPENAI.has(name));
  const values = entries.filter(([name]) => OPENAI.has(name));
  if (extra.length > 0) values.push(["extra_body", Object.fromEntries(extra)]);
  return [
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(base)}${key ? "" : ', api_key="none"'})`,
    "answer = client.chat.completions.create(",
    ...values.map(([name, value]) => `    ${name}=${pythonLiteral(value, "    ")},`),
    ")",
    "print(answer.choices[0].message.content)",
    "",
  ].join("\n");
}

function javaScript({ base, request, key }) {
  return [
    'import OpenAI from "openai";',
    "",
    `const client = new OpenAI({ baseURL: ${JSON.stringify(base)}${key ? "" : ', apiKey: "none"'} });`,
    `const answer = await client.chat.completions.create(${JSON.stringify(request, null, 2)});`,
    "console.log(answer.choices[0].message.content);",
    "",
  ].join("\n");
}

// A string or number of JSON is one of Python, too.
function pythonLiteral(value, indent) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const items = Array.isArray(value)
    ? value.map((item) => pythonLiteral(item, inner))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${pythonLiteral(item, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return items.length === 0 ? open + close : `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${indent}${close}`;
}

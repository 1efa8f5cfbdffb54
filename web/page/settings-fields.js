// The settings of a request that the page offers, with the limits that the API has for them (tests/web/page compares
// them), and how the text of a field becomes a value. Pure: no page.

const INT32 = 2 ** 31 - 1;
const STOP_STRINGS = 16;
const STOP_LENGTH = 256;
const TOKEN_IDS = 128;
const BAD_WORDS = 256;
const BAD_WORD_LENGTH = 128;
const BIASES = 1024;

// name, label, kind, what it does; `least` and `most` are allowed values; `also` is sent with it.
export const GROUPS = [
  ["Sampling", [
    { name: "temperature", label: "Temperature", kind: "number", least: 0, most: 2, help: "0 always takes the likeliest token; more gives more varied answers." },
    { name: "max_tokens", label: "Max tokens", kind: "integer", least: 1, most: INT32, empty: "all that fit", help: "The answer is cut after this many tokens." },
    { name: "top_p", label: "Top p", kind: "number", least: 0, most: 1, help: "Only the likeliest tokens that together have this probability." },
    { name: "top_k", label: "Top k", kind: "integer", least: -1, most: INT32, help: "Only this many of the likeliest tokens; 0 or -1: all." },
    { name: "min_p", label: "Min p", kind: "number", least: 0, most: 1, help: "Only tokens at least this probable, relative to the likeliest." },
    { name: "seed", label: "Seed", kind: "integer", least: -1, most: Number.MAX_SAFE_INTEGER, empty: "random", help: "The same seed draws the same answer again; -1: a random one." },
  ]],
  ["Length and end", [
    { name: "min_tokens", label: "Min tokens", kind: "integer", least: 0, most: INT32, empty: "0", help: "The answer may not end before." },
    { name: "stop", label: "Stop strings", kind: "lines", most: STOP_STRINGS, length: STOP_LENGTH, help: `One per line; the answer ends before the first that appears. \\n is a line break. At most ${STOP_STRINGS}, of ${STOP_LENGTH} characters.` },
    { name: "stop_token_ids", label: "Stop token ids", kind: "ids", most: TOKEN_IDS, help: `The answer ends at one of these tokens: 2, 32000. At most ${TOKEN_IDS}.` },
    { name: "include_stop_str_in_output", label: "Show the stop string", kind: "flag", help: "The answer keeps the string that ended it." },
    { name: "ignore_eos", label: "Ignore the model's end", kind: "flag", help: "The answer goes on until another limit, for tests." },
    { name: "skip_special_tokens", label: "Special tokens", kind: "choice", choices: [["true", "hidden"], ["false", "shown"]], help: "Tokens such as <|im_end|> in the text." },
  ]],
  ["Answer", [
    { name: "response_format", label: "JSON schema", kind: "schema", help: "The answer is JSON that fits this schema." },
    { name: "logprobs", label: "Token probabilities", kind: "flag", also: { top_logprobs: 5 }, help: "Each token of the answer shows how probable it was, and what else could have stood there." },
  ]],
  ["Penalties", [
    { name: "presence_penalty", label: "Presence penalty", kind: "number", least: -2, most: 2, empty: "0", help: "Taken off every token that the answer has already." },
    { name: "frequency_penalty", label: "Frequency penalty", kind: "number", least: -2, most: 2, empty: "0", help: "Taken off a token for each time that the answer has it." },
    { name: "repetition_penalty", label: "Repetition penalty", kind: "number", least: 0.01, most: 2, help: "Above 1, tokens of the conversation become less likely; 1 is off." },
    { name: "logit_bias", label: "Logit bias", kind: "biases", help: `A token id and what is added to it, from -100 to 100, per line: 1234: -5. At most ${BIASES}.` },
    { name: "bad_words", label: "Bad words", kind: "lines", most: BAD_WORDS, length: BAD_WORD_LENGTH, help: `One per line; the answer has none of them. At most ${BAD_WORDS}, of ${BAD_WORD_LENGTH} characters.` },
    { name: "allowed_token_ids", label: "Allowed token ids", kind: "ids", most: Infinity, help: "The answer has only these tokens: 2, 32000." },
  ]],
  ["Tools and thinking", [
    { name: "tools", label: "Tools", kind: "tools", help: "JSON: a list of functions with name, description and parameters, as for the API. The model may call them, and you write what they return." },
    { name: "enable_thinking", label: "Thinking", kind: "choice", choices: [["true", "on"], ["false", "off"]], empty: "as usual", help: "For models whose chat template can switch it." },
    { name: "thinking_token_budget", label: "Thinking tokens", kind: "integer", least: 0, most: INT32, empty: "no limit", help: "After so many tokens of thoughts, the model must answer." },
    { name: "include_reasoning", label: "Thoughts", kind: "choice", choices: [["true", "shown"], ["false", "left out"]], help: "What a model thinks before it answers." },
  ]],
  ["Scheduling", [
    { name: "priority", label: "Priority", kind: "integer", least: -INT32, most: INT32, empty: "0", help: "Lower runs first, among the requests of one API key." },
    { name: "determinism", label: "Determinism", kind: "choice", choices: [["strict", "strict"]], help: "Strict: the same bits alone and in any batch, on a GPU too, where it costs speed." },
    { name: "cache_salt", label: "Cache salt", kind: "salt", help: "Cached prompts are shared only with requests that have the same salt." },
  ]],
];

export const SPECS = GROUPS.flatMap(([, specs]) => specs);

// What a conversation's settings ask for, as texts by name: { model, system, sampling, problems }. `sampling` has the names and
// types of the API; `problems` has words for each text that cannot be sent.
export function asked({ model = "", system = "", ...texts }) {
  const sampling = {};
  const problems = new Map();
  for (const spec of SPECS) {
    const { value, problem } = read(spec, texts[spec.name] ?? "");
    if (problem) problems.set(spec.name, problem);
    else if (value !== undefined) Object.assign(sampling, { [spec.name]: value, ...spec.also });
  }
  if (sampling.min_tokens > sampling.max_tokens) problems.set("min_tokens", `Min tokens is above Max tokens (${sampling.max_tokens}).`);
  return { model, system: system.trim(), sampling, problems };
}

// The value that a field's text asks for: { value }, undefined where the field is empty; or { problem }, in words.
export function read(field, text) {
  const kept = text.trim();
  if (!kept) return { value: undefined };
  return READERS[field.kind](field, kept);
}

const READERS = {
  number: ({ label, least, most }, text) => between(label, "a number", Number(text), least, most),
  integer: ({ label, least, most }, text) => between(label, "a whole number", /^[-+]?\d+$/.test(text) ? Number(text) : NaN, least, most),
  flag: (_, text) => ({ value: text === "true" }),
  choice: (_, text) => ({ value: text === "true" || (text !== "false" && text) }),
  salt: ({ label }, text) => (/^[A-Za-z0-9_-]{1,128}$/.test(text) ? { value: text } : { problem: `${label} may have 1 to 128 letters, digits, - and _.` }),
  schema: ({ label }, text) => {
    let schema;
    try {
      schema = JSON.parse(text);
    } catch (error) {
      return { problem: `${label} is not valid JSON: ${error.message}.` };
    }
    if (typeof schema !== "object" || schema === null || Array.isArray(schema)) return { problem: `${label} must be an object, such as {"type": "object"}.` };
    return { value: { type: "json_schema", json_schema: { name: "answer", schema, strict: true } } };
  },
  lines: ({ label, most, length }, text) => {
    const value = text.split("\n").filter(Boolean).map(unescaped);
    const long = value.find((string) => [...string].length > length);
    if (value.length > most) return { problem: `${label}: at most ${most} lines; these are ${value.length}.` };
    return long ? { problem: `${label}: at most ${length} characters in a line; one begins with “${long.slice(0, 20)}”.` } : { value };
  },
  ids: ({ label, most }, text) => {
    const words = text.split(/[\s,]+/).filter(Boolean);
    const wrong = words.find((word) => !isTokenId(word));
    if (wrong) return { problem: `${label}: “${wrong.slice(0, 20)}” is not a token id. Write numbers with commas between.` };
    return words.length > most ? { problem: `${label}: at most ${most}; these are ${words.length}.` } : { value: words.map(Number) };
  },
  tools: ({ label }, text) => {
    let value;
    try {
      value = JSON.parse(text);
    } catch (error) {
      return { problem: `${label} must be JSON: ${error.message}` };
    }
    if (!Array.isArray(value)) return { problem: `${label} must be a list: [{"name": "get_weather", "parameters": {…}}].` };
    value = value.map((tool) => (tool?.function ? tool : { type: "function", function: tool }));
    const nameless = value.findIndex((tool) => typeof tool.function?.name !== "string");
    return nameless < 0 ? { value } : { problem: `${label}: function ${nameless + 1} has no name.` };
  },
  biases: ({ label }, text) => {
    const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
    const pairs = lines.map((line) => line.split(":").map((part) => part.trim()));
    const wrong = pairs.findIndex(([id, bias, more]) => !isTokenId(id) || !bias || more !== undefined || !(Math.abs(Number(bias)) <= 100));
    if (wrong >= 0) return { problem: `${label}: “${lines[wrong].slice(0, 20)}” is not a token id, a colon and a number from -100 to 100.` };
    return lines.length > BIASES ? { problem: `${label}: at most ${BIASES} lines.` } : { value: Object.fromEntries(pairs.map(([id, bias]) => [id, Number(bias)])) };
  },
};

function between(label, what, value, least, most) {
  if (value >= least && value <= most) return { value };
  const limits = most >= INT32 ? (least === -most ? "" : ` of at least ${least}`) : ` from ${least} to ${most}`;
  return { problem: `${label} must be ${what}${value > most && !limits.includes("to") ? ` of at most ${most}` : limits}.` };
}

const isTokenId = (word) => /^\d+$/.test(word) && Number(word) <= INT32;
const unescaped = (line) => line.replace(/\\([nt\\])/g, (_, letter) => ({ n: "\n", t: "\t", "\\": "\\" })[letter]);

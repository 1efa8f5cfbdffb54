// From a path of messages to what is asked of the server. `asked` stands in the answer's record: { model, system,
// sampling, leftOut }; the last is how many of the oldest messages are not sent.

export const TOO_LARGE = new Set([400, 413]); // HTTP status of a request with too many messages or too much text
const ANSWER_TOKENS = 512; // room that is kept for an answer without max_tokens, but no more than a quarter of the context

// A path that ends with an answer asks for its continuation.
export function requestOf(path, { model, system, sampling, leftOut = 0 }) {
  const messages = system ? [{ role: "system", content: system }] : [];
  path.forEach(({ role, content, calls, results }, index) => {
    const next = path[index + 1];
    const unanswered = role === "user" && next?.role === "assistant" && !next.content && !next.results;
    if (index < leftOut || unanswered) return;
    if (results) messages.push({ role, content, tool_calls: calls.map(toolCall) }, ...results.map((result, at) => ({ role: "tool", tool_call_id: calls[at].id, content: result })));
    else if (content) messages.push({ role, content }); // calls without results were not answered
  });
  return { model, messages, ...(messages.at(-1)?.role === "assistant" && { continue_final_message: true }), ...sampling };
}

// The tokens that a prompt may have, beside its answer.
export const roomFor = (limit, { max_tokens: answer = Math.min(ANSWER_TOKENS, limit / 4) }) => limit - answer;

// How many of the oldest messages must be left out for the request to fit into `limit` tokens with its answer: whole
// turns, never the last one. 0 also where that one alone does not fit; the server says so. count(request): its tokens.
export async function leftOutOf(path, asked, limit, count) {
  const room = roomFor(limit, asked.sampling);
  const fits = (leftOut) => count(requestOf(path, { ...asked, leftOut })).then(
    (tokens) => tokens <= room,
    (error) => {
      if (!TOO_LARGE.has(error.status)) throw error;
      return false;
    },
  );
  if (await fits(0)) return 0;
  const turns = path.flatMap(({ role }, index) => (role === "user" && index > 0 ? [index] : []));
  if (turns.length === 0 || !(await fits(turns.at(-1)))) return 0;
  let [low, high] = [0, turns.length - 1]; // turns[high] fits
  while (low < high) {
    const middle = (low + high) >> 1;
    if (await fits(turns[middle])) high = middle;
    else low = middle + 1;
  }
  return turns[high];
}

const toolCall = ({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } });

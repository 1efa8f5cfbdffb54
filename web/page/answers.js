// The running answers. One tab writes an answer: the one that holds its claim. The others show what that one tells. When
// it is closed or reloaded, the next tab that gets the claim goes on where the record ends: the server keeps an answer
// for a while.

import { scoreOf } from "./scores.js";
import { claim, listen, tell } from "./tabs.js";
import { waitingWords } from "./waiting.js";

const SAVE_EVERY_MS = 1000; // while an answer grows
const ASK_WHY_EVERY_MS = 1000; // while it has not begun
const ENDINGS = { cancelled: "stopped", length: "length", deadline: "deadline", stalled: "stalled" }; // other: "done"
const NOT_KEPT = "not_found"; // the server does not have this answer any more

export class Answers {
  #socket;
  #conversations;
  #claimed = new Set(); // message ids whose claim this tab holds or waits for
  #stops = new Map(); // message id -> what stops it, where this tab writes it
  #requestFor;

  // requestFor(message) resolves to what is asked of the server for this answer, with the text that it has already.
  constructor(socket, conversations, requestFor) {
    this.#socket = socket;
    this.#conversations = conversations;
    this.#requestFor = requestFor;
    listen("stop", ({ id }) => this.#cancel(id));
  }

  // Ask for answers and store their records, { id, state: "streaming", … }; the first is what the conversation then shows.
  // One that has text is continued; `base` is how many tokens that has. `scores` is a list where the probabilities of its
  // tokens are kept. `others` are messages to store with them.
  begin(chat, messages, others = []) {
    for (const message of messages) {
      const { promise: written, resolve } = Promise.withResolvers();
      this.#claim(message.id, () => written, { fresh: true }); // first, since the page follows what it shows
      resolve(this.#ask(message));
    }
    this.#conversations.add(chat, [...others, ...messages], { leaf: messages[0].id });
  }

  // Go on with an answer once the tab that writes it is gone.
  follow({ id }) {
    this.#claim(id, async () => {
      const message = await this.#conversations.message(id);
      if (message?.state === "streaming") await this.#goOn(message);
      else if (message) this.#conversations.take(message);
    });
  }

  stop(id) {
    this.#cancel(id);
    tell("stop", { id });
  }

  async #claim(id, work, how) {
    if (this.#claimed.has(id)) return;
    this.#claimed.add(id);
    await claim(`answer ${id}`, work, how);
    this.#claimed.delete(id);
  }

  #cancel(id) {
    const stop = this.#stops.get(id);
    this.#stops.delete(id); // once is enough
    stop?.();
  }

  async #goOn(message) {
    const { token, after } = message.resume ?? {};
    if (token) await this.#write(message, (handlers) => this.#socket.resume(token, after, handlers));
    if (token && message.code !== NOT_KEPT) return;
    if (message.content) {
      await this.#end(message, { state: "lost" });
    } else {
      Object.assign(message, { state: "streaming", code: undefined, scores: message.scores && [] }); // nothing of it was seen
      await this.#ask(message);
    }
  }

  async #ask(message) {
    this.#conversations.take(message, { writing: true });
    const stopped = new Promise((resolve) => this.#stops.set(message.id, resolve));
    const request = await Promise.race([this.#requestFor(message), stopped]);
    if (request) await this.#write(message, (handlers) => this.#socket.create(request, handlers));
    else await this.#end(message, { state: "stopped" });
  }

  async #end(message, fields) {
    Object.assign(message, { waiting: "", resume: undefined }, fields);
    this.#stops.delete(message.id);
    await this.#conversations.save(message);
    this.#conversations.writing.delete(message.id);
  }

  // Writes what arrives into the record; resolves when the answer has ended, here or because another tab took it over.
  #write(message, open) {
    const run = { created: performance.now(), first: 0, before: 0, tokens: message.stats?.tokens ?? 0, saved: -Infinity, asking: 0 };
    this.#conversations.take(message, { writing: true });
    return new Promise((resolve) => {
      const end = async (fields) => {
        clearInterval(run.asking);
        await this.#end(message, fields);
        resolve();
      };
      const name = open({
        accepted: (token) => {
          message.resume = { token, after: 1 };
          this.#conversations.save(message);
        },
        started: () => this.#explained(message, ""),
        token: (frame) => {
          clearInterval(run.asking);
          this.#token(message, run, frame);
        },
        finished: ({ reason, usage }) => {
          const stats = usage ? { ...message.stats, tokens: (message.base ?? 0) + usage.completion_tokens, context: usage.total_tokens } : message.stats;
          end({ state: ENDINGS[reason] ?? "done", stats });
        },
        failed: (error) => {
          if (error?.code === "resumed_elsewhere") {
            clearInterval(run.asking);
            this.#conversations.writing.delete(message.id);
            resolve();
          } else if (error?.code === NOT_KEPT && message.resume && message.content) {
            end({ state: "lost" }); // the server was started anew
          } else {
            end({ state: "failed", error: error?.message ?? "The request failed.", code: error?.code, param: error?.param });
          }
        },
        explained: (explanation) => this.#explained(message, waitingWords(explanation)),
      });
      this.#stops.set(message.id, () => this.#socket.cancel(name));
      run.asking = setInterval(() => this.#socket.explain(name), ASK_WHY_EVERY_MS);
    });
  }

  #explained(message, words) {
    if ((message.waiting ?? "") === words) return;
    message.waiting = words;
    this.#conversations.grow(message, "");
  }

  #token(message, run, frame) {
    if (!this.#conversations.chats.has(message.chat)) this.#cancel(message.id); // deleted
    const now = performance.now();
    const count = frame.tokens ?? 1;
    if (!run.first) {
      run.first = now;
      run.before = run.tokens + count; // the first frame's tokens are older than the start of the rate's clock
    }
    run.tokens += count;
    const seconds = (now - run.first) / 1000;
    message.stats = { firstMs: run.first - run.created, ...message.stats, tokens: run.tokens };
    if (seconds > 0) message.stats.perSecond = (run.tokens - run.before) / seconds;
    if (message.resume) message.resume.after = frame.seq + 1;
    message.waiting = "";
    if (frame.kind === "tool") takeCall(message, frame);
    const text = tagged(message, frame);
    message.content += text;
    const scores = (message.scores && frame.logprobs?.content.map(scoreOf)) ?? [];
    message.scores?.push(...scores);
    this.#conversations.grow(message, text, scores);
    if (message.content && now - run.saved > SAVE_EVERY_MS) {
      run.saved = now;
      this.#conversations.save(message);
    }
  }
}

// A frame's text as part of the record. Thoughts come in frames of their own kind; in the record tags are around them.
function tagged(message, { kind, text }) {
  if (!text || (kind !== "text" && kind !== "reasoning")) return "";
  const before = message.thinking ? "\n</think>\n\n" : "<think>\n";
  if (Boolean(message.thinking) === (kind === "reasoning")) return text;
  message.thinking = kind === "reasoning";
  return before + text;
}

// A piece of a tool call; the first has its id and the function's name.
function takeCall(message, { call, begins, text }) {
  message.calls ??= [];
  if (begins) message.calls[call] = { id: begins.id, name: begins.name, arguments: "" };
  message.calls[call].arguments += text;
}

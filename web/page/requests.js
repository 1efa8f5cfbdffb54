// The requests of the conversations, with the model that their settings lead to: for an answer, as another program would
// make it, and for counting what a text takes.

import { countTokens, showContext } from "./context.js";
import { chosenModel } from "./models.js";
import { leftOutOf, requestOf, roomFor, TOO_LARGE } from "./request.js";
import { asked } from "./settings-fields.js";
import { loadKey } from "./store.js";
import { pathTo } from "./tree.js";

// models(): those of the server, as they are now.
export function setUpRequests(conversations, models) {
  const limitOf = (name) => chosenModel(models(), name).model.max_model_len;

  // What settings ask for: { model, system, sampling }.
  function askedFor(settings) {
    const { model, system, sampling } = asked(settings);
    return { model: chosenModel(models(), model).model.id ?? (model || undefined), system, sampling };
  }

  async function forAnswer({ id, chat, parent, content, asked }) {
    const limit = limitOf(asked.model);
    const messages = new Map((await conversations.messagesOf(chat)).map((message) => [message.id, message]));
    const asking = pathTo(messages, content ? id : parent);
    if (limit) asked.leftOut = await leftOutOf(asking, asked, limit, countTokens).catch(() => 0);
    return requestOf(asking, asked);
  }

  // An imported answer does not say how it was asked for; `settings` do.
  function callOf({ parent, asked }, settings) {
    const request = requestOf(pathTo(conversations.messages, parent), asked ?? askedFor(settings));
    return { base: new URL("v1", document.baseURI).href, request, key: loadKey() !== null };
  }

  // How many tokens a question takes that consists of `text`, and how many it may take; those are not known
  // while no model is.
  async function tokensOf(text, settings) {
    const wanted = askedFor(settings);
    const limit = limitOf(wanted.model);
    if (!limit) return { room: Infinity };
    const room = Math.max(0, roomFor(limit, wanted.sampling));
    if (!text) return { tokens: 0, room };
    const tokens = await countTokens(requestOf([{ role: "user", content: text }], wanted)).catch(({ status }) => (TOO_LARGE.has(status) ? Infinity : undefined));
    return { tokens, room };
  }

  // Shows how much of the context a path takes, with what is typed.
  function countContext(path, typed, settings) {
    const growing = path.at(-1)?.state === "streaming" ? path.at(-1) : undefined;
    const messages = growing ? path.slice(0, -1) : [...path];
    if (typed) messages.push({ role: "user", content: typed });
    const wanted = askedFor(settings);
    const { continue_final_message, ...request } = requestOf(messages, wanted);
    showContext(request, limitOf(wanted.model), growing?.stats?.tokens);
  }

  return { askedFor, forAnswer, callOf, tokensOf, countContext };
}

// openai (Node): the streaming helper, whose message has every field that the library knows.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const question = { role: "user", content: "What is 3 plus 4?" };
const model = (await client.models.list()).data[0].id;
const options = { model, temperature: 0 };

const pieces = [];
const stream = client.chat.completions.stream({
  ...options, messages: [question], stream_options: { include_usage: true },
});
stream.on("content", (piece) => pieces.push(piece));
const { choices: [{ message }], usage } = await stream.finalChatCompletion();
const second = await client.chat.completions.create({
  ...options, messages: [question, message, { role: "user", content: "Thank you" }],
});
let overflow = null;
try {
  await client.chat.completions.create({ ...options, messages: [{ role: "user", content: "word ".repeat(9000) }] });
} catch (error) {
  if (error instanceof OpenAI.BadRequestError) overflow = `BadRequestError ${error.code}`;
}
console.log(JSON.stringify({
  pieces, answer: message.content, tokens: [usage.prompt_tokens, usage.completion_tokens],
  second: second.choices[0].message.content, overflow,
}));

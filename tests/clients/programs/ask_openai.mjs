// openai (Node): the streaming helpers, a parsed answer, a tool that runs by itself, Responses, files and batches.
import { setTimeout } from "node:timers/promises";
import OpenAI, { toFile } from "openai";

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

const sum = { type: "object", properties: { result: { type: "integer" } }, required: ["result"], additionalProperties: false };
const whole = await client.chat.completions.parse({
  ...options, messages: [question], response_format: { type: "json_schema", json_schema: { name: "sum", schema: sum, strict: true } },
});
const getWeather = {
  name: "get_weather",
  description: "The weather in a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  parse: JSON.parse,
  function: ({ city }) => (city === "Rome" ? { temperature: 21, sky: "sunny" } : "unknown"),
};
const called = await client.chat.completions.runTools({
  ...options, messages: [{ role: "user", content: "What is the weather in Rome?" }],
  tools: [{ type: "function", function: getWeather }],
}).finalContent();

const input = question.content;
const first = await client.responses.create({ ...options, input, store: true });
let streamed = "";
for await (const event of client.responses.stream({ ...options, input })) {
  if (event.type === "response.output_text.delta") streamed += event.delta;
}
const next = await client.responses.create({ ...options, input: "Thank you", previous_response_id: first.id });

const line = { custom_id: "sum", method: "POST", url: "/v1/chat/completions", body: { ...options, messages: [question] } };
const file = await client.files.create({ file: await toFile(Buffer.from(JSON.stringify(line)), "in.jsonl"), purpose: "batch" });
let batch = await client.batches.create({ input_file_id: file.id, endpoint: line.url, completion_window: "24h" });
while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
  await setTimeout(50);
  batch = await client.batches.retrieve(batch.id);
}
const answered = JSON.parse(await (await client.files.content(batch.output_file_id)).text());

console.log(JSON.stringify({
  pieces, answer: message.content, tokens: [usage.prompt_tokens, usage.completion_tokens],
  second: second.choices[0].message.content, overflow,
  called, formed: Number.isInteger(JSON.parse(whole.choices[0].message.content).result),
  responses: [first.output_text, streamed, next.output_text],
  batch: answered.response.body.choices[0].message.content,
}));

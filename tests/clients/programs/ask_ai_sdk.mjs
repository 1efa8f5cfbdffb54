// The AI SDK with its provider for compatible servers. Its retries are off, so the error is the call's own.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const triolet = createOpenAICompatible({
  name: "triolet", baseURL: `${process.argv[2]}/v1`, includeUsage: true, supportsStructuredOutputs: true,
});
const options = { model: triolet("triolet-demo"), temperature: 0, maxRetries: 0 };
const question = { role: "user", content: "What is 3 plus 4?" };

const stream = streamText({ ...options, messages: [question] });
const pieces = [];
for await (const piece of stream.textStream) pieces.push(piece);
const usage = await stream.usage;
const { messages } = await stream.response;
const second = await generateText({ ...options, messages: [question, ...messages, { role: "user", content: "Thank you" }] });
let overflow = null;
try {
  await generateText({ ...options, messages: [{ role: "user", content: "word ".repeat(9000) }] });
} catch (error) {
  if (APICallError.isInstance(error)) overflow = `AI_APICallError ${error.data.error.code}`;
}
const weather = tool({
  description: "The weather in a city.",
  inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } }, required: ["city"] }),
  execute: ({ city }) => (city === "Rome" ? { temperature: 21, sky: "sunny" } : "unknown"),
});
const called = await generateText({
  ...options, tools: { get_weather: weather }, stopWhen: stepCountIs(3), prompt: "What is the weather in Rome?",
});
const { object } = await generateObject({
  ...options, messages: [question],
  schema: jsonSchema({
    type: "object", properties: { result: { type: "integer" } }, required: ["result"], additionalProperties: false,
  }),
});
console.log(JSON.stringify({
  pieces, answer: await stream.text, tokens: [usage.inputTokens, usage.outputTokens], second: second.text, overflow,
  called: called.text, formed: Number.isInteger(object.result),
}));

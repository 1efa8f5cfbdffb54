// What ask_openapi_typescript.mjs compiles against the generated types.
import createClient from "openapi-fetch";
import type { components, paths } from "./openapi.d.ts";

type Messages = components["schemas"]["ChatBody"]["messages"];

export async function chat(baseUrl: string) {
  const client = createClient<paths, "application/json">({ baseUrl });
  const ask = (messages: Messages) =>
    client.POST("/v1/chat/completions", { body: { messages, temperature: 0 } });

  const question: Messages[number] = { role: "user", content: "What is 3 plus 4?" };
  const whole = (await ask([question])).data!;
  const message = whole.choices[0].message;
  const second = (await ask([question, message, { role: "user", content: "Thank you" }])).data!;
  const { error } = await ask([{ role: "user", content: "word ".repeat(9000) }]);
  return {
    pieces: null,
    answer: message.content,
    tokens: [whole.usage.prompt_tokens, whole.usage.completion_tokens],
    second: second.choices[0].message.content,
    overflow: error ? `ErrorBody ${error.error.code}` : null,
  };
}

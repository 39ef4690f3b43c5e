// OpenAI's Node package against the gateway. Arguments: base URL, model.
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Name three rivers of Europe." }];

function check(what, holds) {
  if (!holds) {
    console.error(`FAILED: ${what}`);
    process.exit(1);
  }
  console.log(`ok: ${what}`);
}

const whole = await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0 });
check("a chat is answered", whole.choices[0].message.content.length > 0);

const stream = await client.chat.completions.create({
  model,
  messages,
  max_tokens: 12,
  temperature: 0,
  stream: true,
  stream_options: { include_usage: true },
});
let text = "";
let usage;
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
check("streamed text equals the whole", text === whole.choices[0].message.content);
check("usage is the same", usage.total_tokens === whole.usage.total_tokens);

const helper = client.chat.completions.stream({ model, messages, max_tokens: 12, temperature: 0 });
check("the stream helper puts it together", (await helper.finalContent()) === text);

const completion = await client.completions.create({
  model,
  prompt: "The capital of France is",
  max_tokens: 2,
  logprobs: 2,
  echo: true,
  temperature: 0,
});
const scores = completion.choices[0].logprobs;
check("scores of prompt and answer", scores.tokens.length === scores.token_logprobs.length);
check("the prompt's first token has none", scores.token_logprobs[0] === null);

const models = await client.models.list();
check("the model is listed", models.data.some((card) => card.id === model));

const leaving = await client.chat.completions.create({ model, messages, max_tokens: 500, stream: true });
for await (const _ of leaving) break;
leaving.controller.abort();

for (const [body, status, name] of [
  [{ model: "no-such-model" }, 404, "model"],
  [{ top_p: 2 }, 400, "top_p"],
  [{ max_tokens: -1 }, 400, "max_tokens"],
]) {
  try {
    await client.chat.completions.create({ model, messages, max_tokens: 2, ...body });
    check(`${name} is refused`, false);
  } catch (error) {
    check(`${name} is refused with ${status}`, error.status === status && error.param === name);
  }
}

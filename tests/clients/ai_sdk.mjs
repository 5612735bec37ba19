// Vercel's AI SDK, with three of its providers.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, streamText, tool } from "ai";

const [url, key] = process.argv.slice(2);
const name = "thunderfleet/tiny";
const city = {
  type: "object",
  properties: { city: { type: "string", enum: ["Oslo", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const models = {
  compatible: createOpenAICompatible({
    name: "fleet", baseURL: url, apiKey: key, supportsStructuredOutputs: true, includeUsage: true,
  })(name),
  responses: createOpenAI({ baseURL: url, apiKey: key }).responses(name),
  anthropic: createAnthropic({ baseURL: url, apiKey: key })(name),
};
const tools = { weather: tool({ description: "The weather", inputSchema: jsonSchema(city) }) };
const common = { prompt: "hi", maxOutputTokens: 40, maxRetries: 0 };

function called(result) {
  const [call] = result.toolCalls;
  return call.toolName === "weather" && typeof call.input.city === "string";
}

async function streamed(model) {
  let pieces = 0;
  let failure;
  const result = streamText({ model, ...common, onError: ({ error }) => { failure = error; } });
  for await (const piece of result.textStream) pieces += piece ? 1 : 0;
  if (failure) throw failure;
  return pieces > 3 && (await result.usage).outputTokens > 0;
}

const found = {};
for (const [kind, model] of Object.entries(models)) {
  const checks = {
    chat: async () => (await generateText({ model, ...common })).text,
    stream: () => streamed(model),
    tools: async () => called(await generateText({ model, ...common, tools })),
    "forced tools": async () => called(await generateText({ model, ...common, tools, toolChoice: "required" })),
    schema: async () => (await generateObject({ model, ...common, schema: jsonSchema(city) })).object.city,
  };
  for (const [check, run] of Object.entries(checks)) {
    try {
      const result = await run();
      found[`${kind}: ${check}`] = result ? "works" : `unexpected: ${JSON.stringify(result)}`;
    } catch (error) {
      found[`${kind}: ${check}`] = `${error.name}: ${error.message}`.slice(0, 500);
    }
  }
}
console.log(JSON.stringify(found));

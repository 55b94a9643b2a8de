// Three runs on one socket, the first of which fails: node agents-runs.mjs BASE_URL. Prints what became of each.
import { Agent, setTracingDisabled, withResponsesWebSocketSession } from '@openai/agents';

setTracingDisabled(true);
const agent = new Agent({ name: 'guide', model: 'qwen3-8b' });
const told = [];
await withResponsesWebSocketSession(
  async ({ run }) => {
    for (const input of ['Please die.', 'What is the capital of Norway?', 'What is the capital of Sweden?']) {
      const result = await run(agent, input).catch(() => null);
      told.push(result?.finalOutput ?? 'failed');
    }
  },
  { providerOptions: { baseURL: process.argv[2], apiKey: 'unused' } },
);
console.log(JSON.stringify(told));

// Tools of coding agents and of MCP servers, by the Agents SDK: node agents-tools.mjs BASE_URL STREAM [MCP_SERVER_URL].
// Prints one line of JSON with what the model said.
import { execFileSync } from 'node:child_process';
import * as agents from '@openai/agents';

agents.setTracingDisabled(true);
const [baseURL, stream, serverUrl] = process.argv.slice(2);
const runner = new agents.Runner({ modelProvider: new agents.OpenAIProvider({ baseURL, apiKey: 'unused' }) });

const outcome = { type: 'exit', exitCode: 0 };
const run = async ({ commands }) => ({
  output: commands.map((command) => ({ stdout: execFileSync('sh', ['-c', command]).toString(), stderr: '', outcome })),
});
const createFile = async (operation) => ({ status: 'completed', output: JSON.stringify(operation) });

async function said(tool, input) {
  const agent = new agents.Agent({ name: 'coder', model: 'qwen3-8b', tools: [tool] });
  const result = await runner.run(agent, input, { stream: JSON.parse(stream) });
  await result.completed;
  return result.finalOutput;
}

const told = serverUrl
  ? { mcp: await said(agents.hostedMcpTool({ serverLabel: 'everything', serverUrl }), 'play sum.') }
  : {
      shell: await said(agents.shellTool({ shell: { run } }), 'Add 40 and 2 with the shell.'),
      apply_patch: await said(agents.applyPatchTool({ editor: { createFile } }), 'Say hello in a file.'),
    };
console.log(JSON.stringify(told));

// Tools of coding agents and of MCP servers, by the AI SDK, which checks every item: node ai-sdk-tools.mjs BASE_URL STORE
// [MCP_SERVER_URL]. Prints one line of JSON with what the model said, in one piece and streamed.
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, isStepCount, streamText } from 'ai';
import { execFileSync } from 'node:child_process';

const [baseURL, store, serverUrl] = process.argv.slice(2);
const { tools: declared, responses } = createOpenAI({ baseURL, apiKey: 'unused' });
const run = (command) => execFileSync(command[0], command.slice(1)).toString();
const outcome = { type: 'exit', exitCode: 0 };

const shell = declared.shell({
  execute: async ({ action }) => ({
    output: action.commands.map((command) => ({ stdout: run(['sh', '-c', command]), stderr: '', outcome })),
  }),
});
const local_shell = declared.localShell({ execute: async ({ action }) => ({ output: run(action.command) }) });
const apply_patch = declared.applyPatch({
  execute: async ({ operation }) => ({ status: 'completed', output: JSON.stringify(operation) }),
});
const sql = declared.customTool({
  description: 'Asks a database',
  format: { type: 'grammar', syntax: 'regex', definition: 'SELECT \\d+;' },
  execute: async (query) => `rows of ${query}`,
});
const mcp = declared.mcp({ serverLabel: 'everything', serverUrl, requireApproval: 'never' });

async function said(tools, prompt) {
  const providerOptions = { openai: { store: JSON.parse(store) } };
  const asked = { model: responses('qwen3-8b'), tools, stopWhen: isStepCount(3), providerOptions, prompt };
  return [(await generateText(asked)).text, await streamText(asked).text];
}

const told = serverUrl
  ? { mcp: await said({ mcp }, 'play sum.') }
  : {
      shell: await said({ shell }, 'Add 40 and 2 with the shell.'),
      local_shell: await said({ local_shell }, 'Add 40 and 2 with the shell.'),
      apply_patch: await said({ apply_patch }, 'Say hello in a file.'),
      sql: await said({ sql }, 'Make a query.'),
    };
console.log(JSON.stringify(told));

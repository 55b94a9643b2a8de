/** What the composer sends: its settings → the body of a request, and that body as code for other clients. */

/**
 * @typedef {{label: string, url: string, approval: boolean}} McpServer
 * @typedef {typeof DEFAULTS} Settings
 */

export const DEFAULTS = {
  model: '', instructions: '', effort: '', maxTokens: '',
  schema: '', functions: '', // JSON, or nothing
  hosted: /** @type {string[]} */ ([]), // kinds of the server's own tools
  vectorStores: '', // ids for file_search, with spaces between them
  mcp: /** @type {McpServer[]} */ ([]),
  store: true, background: true, transport: 'sse', // or `websocket`, which has no background
};

export const EXAMPLE_FUNCTION = JSON.stringify([{
  name: 'get_weather', description: 'Current weather of a city.',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
}], null, 2);

/** Declarations of hosted tools that need more than a type, by their kinds. @type {Record<string, (settings: Settings) => object>} */
const HOSTED = {
  code_interpreter: () => ({ type: 'code_interpreter', container: { type: 'auto' } }),
  file_search: ({ vectorStores }) => ({ type: 'file_search', vector_store_ids: vectorStores.split(/[\s,]+/).filter(Boolean) }),
  hosted_shell: () => ({ type: 'shell', environment: { type: 'container_auto' } }),
};

/**
 * Build the body of a request. Raises SyntaxError with a sentence if a field is not JSON.
 * @param {Settings} settings
 * @param {unknown[]} input
 * @param {string} previous the id of the response to continue, or nothing
 * @param {Record<string, any>[]} earlier its tools: rules for single tools, which a person made, are kept
 */
export function buildRequest(settings, input, previous, earlier = []) {
  /** @type {Record<string, any>} */
  const body = { model: settings.model, input };
  if (settings.instructions) body.instructions = settings.instructions;
  if (previous) body.previous_response_id = previous;
  const tools = buildTools(settings, earlier);
  if (tools.length) body.tools = tools;
  if (settings.hosted.length) body.include = ['code_interpreter_call.outputs'];
  if (settings.schema.trim()) {
    const schema = parseJson('The schema', settings.schema);
    body.text = { format: { type: 'json_schema', name: 'answer', schema, strict: true } };
  }
  if (settings.effort) body.reasoning = { effort: settings.effort, summary: 'auto' };
  if (settings.maxTokens) body.max_output_tokens = Number(settings.maxTokens);
  if (!settings.store) body.store = false;
  else if (settings.background && settings.transport === 'sse') body.background = true;
  return body;
}

/** @param {Settings} settings @param {Record<string, any>[]} earlier @returns {unknown[]} */
function buildTools(settings, earlier) {
  const functions = settings.functions.trim() ? parseJson('The functions', settings.functions) : [];
  if (!Array.isArray(functions)) throw new SyntaxError('The functions must be a JSON list.');
  return [
    ...functions.map((one) => ({ type: 'function', ...(one.function ?? one) })),
    ...settings.hosted.map((kind) => HOSTED[kind]?.(settings) ?? { type: kind }),
    ...settings.mcp.map(({ label, url, approval }) => ({
      type: 'mcp', server_label: label || 'mcp', ...(url && { server_url: url }),
      require_approval: approval ? earlier.find((one) => one.server_label === label && (one.server_url ?? '') === url && one.require_approval.never)?.require_approval ?? 'always' : 'never',
    })),
  ];
}

/** @param {string} name @param {string} text */
function parseJson(name, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SyntaxError(`${name} must be JSON: ${error instanceof Error ? error.message : error}`);
  }
}

/** Programs that send a request, by the names of the clients. @type {Record<string, (body: any, origin: string) => string>} */
export const SNIPPETS = {
  curl: (body, origin) => [
    `curl ${origin}/v1/responses \\`,
    `  -H "Authorization: Bearer $OPENAI_API_KEY" \\`,
    `  -H "Content-Type: application/json" \\`,
    `  -d ${quoteShell(JSON.stringify(body, null, 2))}`,
  ].join('\n'),
  'openai-python': (body, origin) => [
    'from openai import OpenAI', '',
    `client = OpenAI(base_url="${origin}/v1")  # the key: OPENAI_API_KEY`,
    'response = client.responses.create(',
    ...Object.entries(body).map(([name, value]) => `    ${name}=${toPython(value, 1)},`),
    ')', 'print(response.output_text)',
  ].join('\n'),
  'openai-node': (body, origin) => [
    "import OpenAI from 'openai';", '',
    `const client = new OpenAI({ baseURL: '${origin}/v1' }); // the key: OPENAI_API_KEY`,
    `const response = await client.responses.create(${JSON.stringify(body, null, 2)});`,
    'console.log(response.output_text);',
  ].join('\n'),
  Codex: (body, origin) => [
    '# ~/.codex/config.toml', `model = ${JSON.stringify(body.model)}`, 'model_provider = "antiphon"', '',
    '[model_providers.antiphon]', 'name = "Antiphon"', `base_url = "${origin}/v1"`, 'wire_api = "responses"',
    'env_key = "OPENAI_API_KEY"',
  ].join('\n'),
};

/** @param {string} text */
function quoteShell(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** @param {any} value @param {number} depth @returns {string} */
function toPython(value, depth) {
  if (value === null || value === undefined) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value !== 'object') return JSON.stringify(value);
  const indent = '    '.repeat(depth + 1), end = '    '.repeat(depth);
  const lines = Array.isArray(value)
    ? value.map((one) => `${indent}${toPython(one, depth + 1)},\n`)
    : Object.entries(value).map(([name, one]) => `${indent}${JSON.stringify(name)}: ${toPython(one, depth + 1)},\n`);
  const [open, close] = Array.isArray(value) ? '[]' : '{}';
  return lines.length ? `${open}\n${lines.join('')}${end}${close}` : open + close;
}

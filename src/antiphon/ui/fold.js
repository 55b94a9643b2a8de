/**
 * Events → Response: what a client knows after each event of a stream.
 *
 * At the end of a stream the result is the Response of its last event. Before, deltas are applied to the open items, so
 * that they can be shown while they grow. Events are never modified: items are copied when they are added.
 * @typedef {Record<string, any>} Json
 */

/** The field of an item that a delta event appends to, by the event's name. @type {Record<string, string>} */
const ITEM_FIELDS = {
  function_call_arguments: 'arguments',
  mcp_call_arguments: 'arguments',
  custom_tool_call_input: 'input',
  code_interpreter_call_code: 'code',
};
/** The same for parts of an item: the list of parts, the event's index into it, and the field. @type {Record<string, string[]>} */
const PART_FIELDS = {
  output_text: ['content', 'content_index', 'text'],
  refusal: ['content', 'content_index', 'refusal'],
  reasoning_text: ['content', 'content_index', 'text'],
  reasoning_summary_text: ['summary', 'summary_index', 'text'],
};
/** @type {Record<string, string[]>} */
const PART_EVENTS = {
  content_part: ['content', 'content_index'],
  reasoning_summary_part: ['summary', 'summary_index'],
};

/**
 * Return the Response after an event. The Response is changed in place, except by events that carry all of it.
 * @param {Json | null} response null before the first event
 * @param {Json} event
 * @returns {Json | null}
 */
export function applyEvent(response, event) {
  if (event.response) return structuredClone(event.response);
  if (!response || !event.type.startsWith('response.')) return response;
  const name = event.type.slice('response.'.length);
  if (name === 'output_item.added' || name === 'output_item.done') {
    response.output[event.output_index] = structuredClone(event.item);
    return response;
  }
  const item = response.output[event.output_index];
  if (item) applyToItem(item, name, event);
  return response;
}

/** @param {string} type whether it is the type of the last event of a stream */
export function isTerminal(type) {
  return /^response\.(completed|incomplete|failed)$/.test(type);
}

/** @param {Json} item @param {string} name of the event, without `response.` @param {Json} event */
function applyToItem(item, name, event) {
  const dot = name.lastIndexOf('.');
  const subject = name.slice(0, dot), action = name.slice(dot + 1);
  if (subject in ITEM_FIELDS) {
    const field = ITEM_FIELDS[subject];
    item[field] = action === 'done' ? event[field] : (item[field] ?? '') + event.delta;
  } else if (subject in PART_FIELDS) {
    const [list, index, field] = PART_FIELDS[subject];
    const part = item[list]?.[event[index]];
    if (part) part[field] = action === 'done' ? event[field] : (part[field] ?? '') + event.delta;
  } else if (subject in PART_EVENTS) {
    const [list, index] = PART_EVENTS[subject];
    (item[list] ??= [])[event[index]] = structuredClone(event.part);
  } else if (name === 'output_text.annotation.added') {
    item.content[event.content_index].annotations[event.annotation_index] = structuredClone(event.annotation);
  } else if (subject === 'shell_call_command') {
    applyToCommand(item, action, event);
  } else if (name === 'image_generation_call.partial_image') {
    item.result = event.partial_image_b64;
  } else if (item.type === subject && 'status' in item) {
    item.status = action;
  }
}

/** @param {Json} item @param {string} action @param {Json} event */
function applyToCommand(item, action, event) {
  const commands = ((item.action ??= {}).commands ??= []), index = event.command_index;
  commands[index] = action === 'delta' ? (commands[index] ?? '') + event.delta : event.command;
}

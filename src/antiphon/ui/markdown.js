/**
 * Markdown → DOM nodes: headings, lists, tables, quotes, code, emphasis, links. Raw HTML is shown as text.
 *
 * Nodes are made by createElement and text nodes only, so no content can become markup. Blocks that have not changed
 * since the last call keep their nodes, in groups, so that a growing text costs only its last block and group.
 */

// Lengths are bounded, so that no text takes quadratic time.
const INLINE = new RegExp([
  '`{1,3}[^`]{1,2000}?`{1,3}', '\\*\\*(?=\\S).{1,2000}?\\*\\*', '\\b__(?=\\S).{1,2000}?__\\b',
  '\\*(?=[^\\s*])[^*]{1,2000}?\\*', '\\b_(?=\\S)[^_]{1,2000}?_\\b', '~~.{1,2000}?~~',
  '!?\\[[^\\]\\[]{0,500}\\]\\([^\\s()]{1,2000}(?:\\s"[^"]{0,500}")?\\)', 'https?:\\/\\/[^\\s<>"\')\\]]{1,2000}',
].join('|'));
const FENCE = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const LIST = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const MAX_TEXTS = 400; // of which nodes are kept
const GROUP = 64; // blocks

/** @type {Map<string, {text: string, blocks: {source: string, node: HTMLElement}[], root: HTMLElement}>} */
const shown = new Map();

/** Return an element with a text. @param {string} key what the text belongs to: its element is reused by the next call with this key @param {string} text */
export function renderMarkdown(key, text) {
  const one = shown.get(key) ?? { text: '', blocks: [], root: element('div') };
  shown.delete(key);
  shown.set(key, one);
  if (shown.size > MAX_TEXTS) shown.delete(/** @type {string} */ (shown.keys().next().value));
  const { blocks, root } = one;
  if (text === one.text) return root;
  one.text = text;
  root.className = 'markdown';
  const sources = splitBlocks(text);
  const same = sources.findIndex((source, index) => blocks[index]?.source !== source);
  for (const { node } of blocks.splice(same < 0 ? sources.length : same)) node.remove();
  for (const source of sources.slice(blocks.length)) {
    const node = renderBlock(source);
    (root.children[Math.floor(blocks.length / GROUP)] ?? root.appendChild(element('div'))).append(node);
    blocks.push({ source, node });
  }
  return root;
}

/** @param {string} text @returns {string[]} */
function splitBlocks(text) {
  /** @type {string[][]} */
  const blocks = [[]];
  let fence = '';
  for (const line of text.split('\n')) {
    const mark = FENCE.exec(line)?.[1] ?? '';
    const last = blocks[blocks.length - 1];
    if (fence) {
      last.push(line);
      if (mark.startsWith(fence)) { fence = ''; blocks.push([]); }
    } else if (mark) {
      fence = mark;
      blocks.push([line]);
    } else if (/^\s*$/.test(line)) {
      // An empty line between items of a list, or before an indented line, does not end the list.
      if (last.length && !LIST.test(last[0])) blocks.push([]);
      else if (last.length) last.push('');
    } else if (/^#{1,6}\s/.test(line)) {
      blocks.push([line], []);
    } else if (last.length && LIST.test(last[0]) && last[last.length - 1] === '' && !/^\s/.test(line) && !LIST.test(line)) {
      blocks.push([line]);
    } else if (last.length && LIST.test(line) && !LIST.test(last[0])) {
      blocks.push([line]);
    } else {
      last.push(line);
    }
  }
  return blocks.map((lines) => lines.join('\n').replace(/\n+$/, '')).filter((block) => block.trim());
}

/** @param {string} source @returns {HTMLElement} */
function renderBlock(source) {
  const lines = source.split('\n');
  const fence = FENCE.exec(lines[0]);
  if (fence) return renderCode(lines, fence[2]);
  const heading = /^(#{1,6})\s+(.*)$/.exec(lines[0]);
  if (heading) return element(`h${Math.min(6, heading[1].length + 1)}`, renderInline(heading[2]));
  if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(source)) return element('hr');
  if (lines.every((line) => /^\s{0,3}>/.test(line))) {
    const inner = lines.map((line) => line.replace(/^\s{0,3}>\s?/, '')).join('\n');
    return element('blockquote', splitBlocks(inner).map(renderBlock));
  }
  if (LIST.test(lines[0])) return renderList(lines);
  if (lines.length > 1 && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[1]) && lines[0].includes('|')) {
    return renderTable(lines);
  }
  return element('p', renderLines(lines));
}

/** @param {string[]} lines @param {string} language */
function renderCode(lines, language) {
  const last = lines.length > 1 && FENCE.test(lines[lines.length - 1]) ? -1 : undefined;
  const code = element('code', [lines.slice(1, last).join('\n')]);
  const block = element('pre', [code]);
  block.tabIndex = 0; // it scrolls, also by keyboard
  if (language) block.dataset.language = language;
  return block;
}

/** @param {string[]} lines */
function renderList(lines) {
  const first = /** @type {RegExpExecArray} */ (LIST.exec(lines[0]));
  const list = element(/\d/.test(first[2]) ? 'ol' : 'ul');
  if (/\d/.test(first[2])) list.setAttribute('start', String(parseInt(first[2], 10)));
  /** @type {string[]} */
  let item = [];
  const flush = () => {
    if (!item.length) return;
    const [head, ...rest] = item;
    const inner = splitBlocks(rest.map((line) => line.replace(/^\s{1,4}/, '')).join('\n')).map(renderBlock);
    list.append(element('li', [...renderInline(head), ...inner]));
  };
  for (const line of lines) {
    const match = LIST.exec(line);
    if (match && match[1].length <= first[1].length) { flush(); item = [match[3]]; }
    else item.push(line);
  }
  flush();
  return list;
}

/** @param {string[]} lines */
function renderTable(lines) {
  /** @param {string} line */
  const cells = (line) => line.trim().replace(/^\||\|$/g, '').split('|').map((cell) => cell.trim());
  const head = element('tr', cells(lines[0]).map((cell) => element('th', renderInline(cell))));
  const rows = lines.slice(2).map((line) => element('tr', cells(line).map((cell) => element('td', renderInline(cell)))));
  return element('table', [element('thead', [head]), element('tbody', rows)]);
}

/** @param {string[]} lines */
function renderLines(lines) {
  return lines.flatMap((line, index) => (index ? [element('br'), ...renderInline(line)] : renderInline(line)));
}

/** @param {string} text @returns {(Node | string)[]} */
function renderInline(text) {
  /** @type {(Node | string)[]} */
  const nodes = [];
  for (let match = INLINE.exec(text); match; match = INLINE.exec(text)) {
    if (match.index) nodes.push(text.slice(0, match.index));
    nodes.push(renderSpan(match[0]));
    text = text.slice(match.index + match[0].length);
  }
  if (text) nodes.push(text);
  return nodes;
}

/** @param {string} span @returns {Node | string} */
function renderSpan(span) {
  if (span[0] === '`') return element('code', [span.replace(/^`+|`+$/g, '')]);
  if (span.startsWith('**') || span.startsWith('__')) return element('strong', renderInline(span.slice(2, -2)));
  if (span.startsWith('~~')) return element('s', renderInline(span.slice(2, -2)));
  if (span[0] === '*' || span[0] === '_') return element('em', renderInline(span.slice(1, -1)));
  const link = /^!?\[([^\]]*)\]\(([^\s)]+)/.exec(span);
  // Images of other hosts are links: the page loads nothing from there.
  return link ? makeLink(link[2], link[1] || link[2]) ?? span : makeLink(span, span) ?? span;
}

/** Return a link to another page; null unless it is http or https. @param {string} url @param {string} label */
export function makeLink(url, label) {
  if (!/^https?:\/\//i.test(url)) return null;
  const link = /** @type {HTMLAnchorElement} */ (element('a', [label]));
  link.href = url;
  link.target = '_blank';
  link.rel = 'noopener noreferrer';
  return link;
}

/** @param {string} name @param {(Node | string)[]} children */
function element(name, children = []) {
  const node = document.createElement(name);
  node.append(...children);
  return node;
}

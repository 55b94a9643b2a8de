/** <event-list>: a list of events of which only the visible rows exist, so that it can hold any number of them. */

import { html, nothing, render } from './vendor/lit-html.js';

/**
 * @typedef {import('./recording.js').WireEvent} WireEvent
 * @typedef {object} ListData
 * @property {WireEvent[]} events
 * @property {string} label
 * @property {number} selected the number of an event
 * @property {(event: WireEvent) => boolean} [isEqual] whether an event is the same in both columns
 */

const ROW = 26; // pixels, as in style.css
const MARGIN = 10; // rows beyond the visible ones

class EventList extends HTMLElement {
  /** @type {ListData} */
  #data = { events: [], label: '', selected: -1 };
  #isAtEnd = true;
  #top = 0;
  #height = 0;

  connectedCallback() {
    this.tabIndex = 0;
    this.setAttribute('role', 'listbox');
    this.addEventListener('scroll', () => {
      this.#top = this.scrollTop;
      this.#isAtEnd = this.#top + this.#height >= this.scrollHeight - ROW;
      this.#draw();
    });
    this.addEventListener('keydown', (event) => this.#press(event));
    new ResizeObserver(() => {
      this.#height = this.clientHeight;
      this.#draw();
    }).observe(this);
  }

  /** @param {ListData} data */
  set data(data) {
    const hasGrown = data.events.length > this.#data.events.length;
    this.#data = data;
    this.setAttribute('aria-label', data.label);
    this.#draw();
    // Later: while the page renders, it would cost a layout.
    if (hasGrown && this.#isAtEnd) queueMicrotask(() => { this.scrollTop = data.events.length * ROW; });
  }

  /** @param {KeyboardEvent} event */
  #press(event) {
    const { events, selected } = this.#data;
    /** @type {Record<string, number>} */
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -events.length, End: events.length };
    const step = steps[event.key];
    if (!step || !events.length) return;
    event.preventDefault();
    const at = events.findIndex((one) => one.number === selected);
    const next = Math.max(0, Math.min(events.length - 1, at + step));
    const top = next * ROW;
    if (top < this.scrollTop || top + ROW > this.scrollTop + this.clientHeight) this.scrollTop = top - this.clientHeight / 2;
    this.#pick(events[next]);
  }

  /** @param {WireEvent} event */
  #pick(event) {
    this.dispatchEvent(new CustomEvent('pick', { detail: event.number }));
  }

  #draw() {
    const { events, label, selected, isEqual } = this.#data;
    const id = (/** @type {number} */ number) => `${label}-${number}`.replaceAll(' ', '-');
    const first = Math.max(0, Math.floor(this.#top / ROW) - MARGIN);
    const rows = events.slice(first, first + Math.ceil(this.#height / ROW) + 2 * MARGIN);
    const visible = rows.find((event) => event.number === selected);
    if (visible) this.setAttribute('aria-activedescendant', id(selected));
    else this.removeAttribute('aria-activedescendant');
    render(html`<div class="spacer" role="presentation" .style=${`height:${events.length * ROW}px`}><div role="presentation" .style=${`transform:translateY(${first * ROW}px)`}>
      ${rows.map((event, index) => {
        const before = events[first + index - 1];
        const { place } = event;
        return html`<div role="option" id=${id(event.number)} aria-selected=${event.number === selected}
          class="event" .style=${place === undefined ? '' : `border-left-color:var(--c${place % 8})`} @click=${() => this.#pick(event)}>
          <span class="number">${event.number}</span><span class="delta">${before ? `+${(event.time - before.time).toFixed(1)}` : `${event.time.toFixed(1)}`}</span>
          <span class="type">${event.type.replace(/^response\./, '')}</span><span class="bytes">${event.bytes} B</span>
          ${isEqual ? html`<span class=${isEqual(event) ? 'same' : 'other'}>${isEqual(event) ? '=' : '≠'}</span>` : ''}</div>`;
      })}</div></div>`, this);
  }
}

customElements.define('event-list', EventList);

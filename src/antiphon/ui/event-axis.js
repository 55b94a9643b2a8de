/** <event-axis>: a tick for every event on a time axis, coloured by item; pauses are marked. */

/** @typedef {{events: import('./recording.js').WireEvent[], shown: number, selected: number}} AxisData */

const HEIGHT = 56, TICK = 34;
const COLOURS = 'c0 c1 c2 c3 c4 c5 c6 c7 muted gap accent'.split(' ');
const MIN_PAUSE = 250; // milliseconds
const SAMPLE = 500; // gaps of which the median is taken
const PAUSE_FACTOR = 8; // a pause is that much longer than the median gap

class EventAxis extends HTMLElement {
  #canvas = document.createElement('canvas');
  /** @type {AxisData} */
  #data = { events: [], shown: 0, selected: -1 };
  // Measured when they change: to ask while events arrive would cost a layout each time.
  #width = 0;
  /** @type {Record<string, string>} */
  #colours = {};

  connectedCallback() {
    this.#canvas.setAttribute('role', 'img');
    this.#canvas.setAttribute('aria-label', 'Events on a time axis');
    this.append(this.#canvas);
    new ResizeObserver(() => this.#measure()).observe(this);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.#measure());
    this.#canvas.addEventListener('click', (event) => this.#pick(event.offsetX));
  }

  #measure() {
    const style = getComputedStyle(this);
    for (const name of COLOURS) this.#colours[name] = style.getPropertyValue(`--${name}`);
    this.#width = this.clientWidth;
    this.#draw();
  }

  /** @param {AxisData} data */
  set data(data) {
    this.#data = data;
    this.#draw();
  }

  /** @param {number} x */
  #pick(x) {
    const { events } = this.#data, time = (x / this.#width) * duration(events);
    const nearest = events.reduce((best, one) => (Math.abs(one.time - time) < Math.abs(best.time - time) ? one : best), events[0]);
    if (nearest) this.dispatchEvent(new CustomEvent('pick', { detail: nearest.number }));
  }

  #draw() {
    const { events, shown, selected } = this.#data, width = this.#width;
    const context = this.#canvas.getContext('2d');
    if (!context || !width) return;
    const scale = devicePixelRatio;
    this.#canvas.width = width * scale;
    this.#canvas.height = HEIGHT * scale;
    context.scale(scale, scale);
    const { muted, gap, accent } = this.#colours, total = duration(events);
    context.font = '11px system-ui, sans-serif';
    context.fillStyle = muted;
    context.fillText('0 ms', 2, HEIGHT - 6);
    const label = `${Math.round(total)} ms`;
    context.fillText(label, width - context.measureText(label).width - 2, HEIGHT - 6);
    this.#drawPauses(context, gap, total);
    let drawn = -1; // ticks of one colour at one pixel are drawn once
    for (let index = 0; index < events.length; index++) {
      const { time, place, isDelta } = events[index];
      const x = Math.round((time / total) * (width - 2));
      const tick = ((x * 16 + (place === undefined ? 8 : place % 8)) * 2 + Number(isDelta)) * 2 + Number(index < shown);
      if (tick === drawn) continue;
      drawn = tick;
      context.fillStyle = place === undefined ? muted : this.#colours[`c${place % 8}`];
      context.globalAlpha = index < shown ? 0.8 : 0.15;
      context.fillRect(x, isDelta ? 12 : 4, isDelta ? 1 : 2, isDelta ? TICK - 12 : TICK - 4);
    }
    context.globalAlpha = 1;
    const chosen = events.find((event) => event.number === selected);
    if (!chosen) return;
    context.fillStyle = accent;
    context.fillRect((chosen.time / total) * (width - 2) - 1, 0, 3, TICK + 4);
  }

  /** @param {CanvasRenderingContext2D} context @param {string} fill @param {number} total */
  #drawPauses(context, fill, total) {
    const { events } = this.#data, width = this.#width;
    const step = Math.ceil(events.length / SAMPLE), sample = [];
    for (let at = 1; at < events.length; at += step) sample.push(events[at].time - events[at - 1].time);
    const median = sample.sort((a, b) => a - b)[sample.length >> 1] ?? 0;
    const longest = Math.max(MIN_PAUSE, PAUSE_FACTOR * median);
    for (let index = 1; index < events.length; index++) {
      const { time } = events[index - 1], gap = events[index].time - time;
      if (gap < longest) continue;
      const start = (time / total) * width, length = (gap / total) * width;
      context.fillStyle = fill;
      context.fillRect(start, 8, length, TICK - 8);
      const label = `${Math.round(gap)} ms`;
      if (context.measureText(label).width < length - 6) {
        context.fillStyle = this.#colours.muted;
        context.fillText(label, start + 4, 24);
      }
    }
  }
}

/** @param {import('./recording.js').WireEvent[]} events */
function duration(events) {
  return Math.max(1, events[events.length - 1]?.time ?? 1);
}

customElements.define('event-axis', EventAxis);

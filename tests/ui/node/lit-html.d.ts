/** The part of lit-html's interface that the page uses. */
export declare const html: (strings: TemplateStringsArray, ...values: unknown[]) => unknown;
export declare const svg: typeof html;
export declare const nothing: unique symbol;
export declare function render(value: unknown, container: HTMLElement): void;

/** The part of lit-html's interface that the page uses. A function in a template listens for events. */
type Value = ((event: any) => unknown) | {} | null | undefined;
export declare const html: (strings: TemplateStringsArray, ...values: Value[]) => unknown;
export declare const nothing: unique symbol;
export declare function render(value: unknown, container: HTMLElement): void;

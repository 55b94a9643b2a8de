/** The part of the interface of @preact/signals-core that the page uses. */
export interface Signal<T> { value: T; }
export interface ReadonlySignal<T> { readonly value: T; }
export declare function signal<T>(value: T): Signal<T>;
export declare function computed<T>(compute: () => T): ReadonlySignal<T>;
export declare function effect(run: () => void): () => void;

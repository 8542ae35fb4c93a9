/**
 * Many waits may share one signal. It gets one listener for all of them: Node takes more than ten for a leak, and says so.
 */
export class Aborts {
  private readonly listeners = new Map<AbortSignal, Set<() => void>>();
  private readonly onAbort = (event: Event) => {
    for (const listener of [...(this.listeners.get(event.target as AbortSignal) ?? [])]) listener();
  };

  add(signal: AbortSignal, listener: () => void): void {
    const known = this.listeners.get(signal);
    if (known) {
      known.add(listener);
    } else {
      this.listeners.set(signal, new Set([listener]));
      signal.addEventListener('abort', this.onAbort);
    }
  }

  remove(signal: AbortSignal, listener: () => void): void {
    const known = this.listeners.get(signal);
    if (!known?.delete(listener) || known.size > 0) return;
    this.listeners.delete(signal);
    signal.removeEventListener('abort', this.onAbort);
  }
}

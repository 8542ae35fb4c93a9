/** Something that is over at a moment, unless it ends before. */
export interface Pending {
  /** By `performance.now()`. */
  until: number;
  /** Nobody awaits it: the process may end before. */
  inBackground: boolean;
  expire(): void;
}

/**
 * The time limits of all calls under way, with one timer: making and clearing one for each call costs more than the rest
 * of its bookkeeping. While one is awaited the timer keeps the process alive, which the socket does not.
 */
export class Deadlines {
  private readonly pending = new Set<Pending>();
  private awaited = 0;
  private timer: NodeJS.Timeout | undefined;
  private due = Infinity;

  get size(): number {
    return this.pending.size;
  }

  add(call: Pending): void {
    this.pending.add(call);
    if (call.until < this.due) this.arm(call.until);
    if (!call.inBackground && (this.awaited += 1) === 1) this.timer?.ref();
  }

  remove(call: Pending): void {
    if (!this.pending.delete(call) || call.inBackground) return;
    if ((this.awaited -= 1) === 0) this.timer?.unref();
  }

  /** No timer is left behind; what is pending has to be ended otherwise. */
  clear(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.due = Infinity;
  }

  private arm(until: number): void {
    clearTimeout(this.timer);
    this.due = until;
    this.timer = setTimeout(() => this.tick(), Math.max(1, until - performance.now()));
    if (this.awaited === 0) this.timer.unref();
  }

  private tick(): void {
    this.clear();
    // A timer may fire a fraction of a millisecond early.
    const now = performance.now() + 1;
    let next = Infinity;
    for (const call of [...this.pending]) {
      if (call.until <= now) call.expire();
      else next = Math.min(next, call.until);
    }
    if (next < this.due) this.arm(next);
  }
}

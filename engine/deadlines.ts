/** Something that is over at a moment, unless it ends before. */
export interface Pending {
  /** By `performance.now()`. */
  until: number;
  /** Nobody awaits it: the process may end before. */
  inBackground: boolean;
  expire(): void;
  /** Neighbours in the list of `Deadlines`. */
  earlier?: Pending | undefined;
  later?: Pending | undefined;
}

/**
 * The time limits of all calls under way, with one timer: making and clearing one for each call costs more than the rest
 * of its bookkeeping. While one is awaited the timer keeps the process alive, which the socket does not.
 */
export class Deadlines {
  // A list through its own members: a Set that is filled and emptied all the time keeps the garbage collector busy.
  private first: Pending | undefined;
  private count = 0;
  private awaited = 0;
  private timer: NodeJS.Timeout | undefined;
  private due = Infinity;

  get size(): number {
    return this.count;
  }

  add(call: Pending): void {
    this.count += 1;
    call.later = this.first;
    if (this.first) this.first.earlier = call;
    this.first = call;
    if (call.until < this.due) this.arm(call.until);
    if (!call.inBackground && (this.awaited += 1) === 1) this.timer?.ref();
  }

  /** Once for each call that was added. */
  remove(call: Pending): void {
    this.count -= 1;
    const { earlier, later } = call;
    if (earlier) earlier.later = later;
    else this.first = later;
    if (later) later.earlier = earlier;
    call.earlier = call.later = undefined;
    if (!call.inBackground && (this.awaited -= 1) === 0) this.timer?.unref();
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
    const over: Pending[] = [];
    for (let call = this.first; call; call = call.later) {
      if (call.until <= now) over.push(call);
      else next = Math.min(next, call.until);
    }
    for (const call of over) call.expire();
    if (next < this.due) this.arm(next);
  }
}

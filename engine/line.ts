import { MOST_IDS } from './calls';
import type { LockKeys } from './keys';
import type { HandOver } from './wakeup';

/** Whatever happened without a message is found in less than 5 s. */
const LOOK_MS = 4950;
/** Without messages (no right to subscribe) a waiter must find its grant before the claim time is over. */
const POLL_MS = 1000;
/** setTimeout counts in 32 bits. */
export const LONGEST_TIMER = 2 ** 31 - 1;

/** A caller that is parked in the line. It awaits `next()`, asks Redis, and parks again. */
export class Waiter {
  /** Where Redis sends its messages. */
  address = '';
  private signalled = false;
  private leaves = false;
  private handed: HandOver | undefined;
  private reason: { value: unknown } | undefined;
  private wake: (() => void) | undefined;

  constructor(
    readonly keys: LockKeys,
    readonly lockId: string,
    /** It may have to leave for another reason than its time: what it waits for was done, or a newer one came. */
    readonly hasPolicy = false,
  ) {}

  /** Something may have changed for this waiter: ask Redis. Remembered if it is not listening just now. */
  notify(): void {
    this.signalled = true;
    this.wake?.();
  }

  /** The lock was handed to this waiter. */
  hand(message: HandOver): void {
    this.handed = message;
    this.wake?.();
  }

  /** It has to leave the line, most likely: ask to be taken out of it. */
  out(): void {
    this.leaves = true;
    this.wake?.();
  }

  /** Redis is being asked: whatever was signalled before that is answered by it. */
  asking(): void {
    this.signalled = false;
    this.handed = undefined;
  }

  /** Ends the wait: the caller was stopped, or everything closes. */
  interrupt(reason: unknown): void {
    this.reason ??= { value: reason };
    this.wake?.();
  }

  /** Why the wait was ended from outside. */
  get interrupted(): { value: unknown } | undefined {
    return this.reason;
  }

  /**
   * Resolves when there is a reason to ask Redis, or the lock was handed over.
   * @param deadline by `performance.now()`
   */
  async next(deadline: number): Promise<'look' | 'out' | 'deadline' | 'interrupt' | HandOver> {
    for (;;) {
      if (this.reason) return 'interrupt';
      const left = deadline - performance.now();
      if (left <= 0) return 'deadline';
      const { handed } = this;
      if (handed) {
        this.handed = undefined;
        return handed;
      }
      if (this.leaves) {
        this.leaves = false;
        return 'out';
      }
      if (this.signalled) {
        this.signalled = false;
        return 'look';
      }
      await new Promise<void>((resolve) => {
        // A longer wait goes round again.
        const timer = setTimeout(resolve, Math.min(left, LONGEST_TIMER));
        this.wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
      this.wake = undefined;
    }
  }
}

interface Group {
  waiters: Map<string, Waiter>;
  timer?: NodeJS.Timeout;
  due: number;
}

/**
 * The waiters of this process by key, without any Redis command in it. One timer per key looks when the lease that was
 * last seen has run out, and at least every 5 s, however many wait.
 */
export class WaitingLine {
  private readonly groups = new Map<string, Group>();

  constructor(
    /** Asks Redis about a key, for some of its waiters; answers the ms to the next change (-1: none known). */
    private readonly look: (waiters: Waiter[]) => Promise<number>,
    /** Where messages have to go, and whether somebody listens there. */
    private readonly wakeUp: { readonly address: string; readonly listening: boolean },
  ) {}

  get size(): number {
    return this.all().length;
  }

  add(waiter: Waiter): void {
    const { full } = waiter.keys;
    let group = this.groups.get(full);
    if (!group) this.groups.set(full, (group = { waiters: new Map(), due: Infinity }));
    group.waiters.set(waiter.lockId, waiter);
  }

  remove(waiter: Waiter): void {
    const group = this.groups.get(waiter.keys.full);
    if (!group || group.waiters.get(waiter.lockId) !== waiter) return;
    group.waiters.delete(waiter.lockId);
    if (group.waiters.size > 0) return;
    clearTimeout(group.timer);
    this.groups.delete(waiter.keys.full);
  }

  find(full: string, lockId: string): Waiter | undefined {
    return this.groups.get(full)?.waiters.get(lockId);
  }

  /** The keys that somebody waits for, by their full names. */
  keys(): string[] {
    return [...this.groups.keys()];
  }

  /** The waiters of one key, or of all. */
  all(full?: string): Waiter[] {
    const groups = full === undefined ? [...this.groups.values()] : [this.groups.get(full)];
    return groups.flatMap((group) => (group ? [...group.waiters.values()] : []));
  }

  /** The key will change in `nextMs` (-1: unknown): look then, unless a look is due earlier. */
  expect(full: string, nextMs: number): void {
    const group = this.groups.get(full);
    if (!group) return;
    const slow = this.wakeUp.listening ? LOOK_MS : POLL_MS;
    // A few ms after the lease's end, spread, so that not every process asks at once.
    const delay = nextMs < 0 ? slow : Math.min(slow, nextMs + 2 + Math.random() * 8);
    const due = performance.now() + delay;
    if (group.timer && group.due <= due) return;
    clearTimeout(group.timer);
    group.due = due;
    group.timer = setTimeout(() => void this.tick(full, group), delay);
    group.timer.unref();
  }

  /** Whether messages for all of these go where they have to. */
  private reaches(group: Group): boolean {
    return [...group.waiters.values()].every(({ address }) => address === this.wakeUp.address);
  }

  private async tick(full: string, group: Group): Promise<void> {
    group.timer = undefined;
    const first = group.waiters.values().next().value;
    if (!first) return;
    // One speaks for all, unless their messages go astray.
    const waiters = this.reaches(group) ? [first] : [...group.waiters.values()].slice(0, MOST_IDS);
    // Where there are no messages, who has to leave must ask for itself.
    if (!this.wakeUp.listening) for (const each of group.waiters.values()) if (each.hasPolicy && each !== first && waiters.length < MOST_IDS && !waiters.includes(each)) waiters.push(each);
    // Redis not reachable: the waiters go on until their deadlines, and so does this.
    const nextMs = await this.look(waiters).catch(() => -1);
    if (this.groups.get(full) === group) this.expect(full, this.reaches(group) || (nextMs >= 0 && nextMs < POLL_MS) ? nextMs : POLL_MS);
  }
}

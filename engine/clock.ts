import { performance } from 'node:perf_hooks';

const FRESH_MS = 60_000;

/**
 * Bounds of Redis' clock, from the time that its answers carry and what has passed here since. They decide nothing about
 * leases: the lower one dates the moment after which an acquire that was given up must not be granted, the upper one
 * tells how old a message is at most.
 */
export class RedisClock {
  private least = -Infinity;
  private most = Infinity;
  private taken = -Infinity;

  /**
   * @param redisMs Redis' time in an answer that has just come
   * @param sent `performance.now()` before it was asked for
   */
  learn(redisMs: number, sent: number): void {
    const now = performance.now();
    // Redis read its clock between the two; an old sample is replaced, for clocks drift.
    if (now - this.taken > FRESH_MS) {
      this.least = -Infinity;
      this.most = Infinity;
      this.taken = now;
    }
    this.least = Math.max(this.least, redisMs - now);
    // It gave whole ms.
    this.most = Math.min(this.most, redisMs + 1 - sent);
  }

  /** After a reconnect it may be another Redis with another clock. */
  forget(): void {
    this.least = -Infinity;
    this.most = Infinity;
    this.taken = -Infinity;
  }

  get known(): boolean {
    return this.least !== -Infinity;
  }

  /** A lower bound of Redis' clock in `ms` from now, in whole ms; 0 while it is unknown. */
  in(ms: number): number {
    return this.known ? Math.floor(performance.now() + this.least + ms) : 0;
  }

  /** Ms that have passed at most since `redisMs`; Infinity while that can't be said. */
  since(redisMs: number): number {
    // A clock that was set meanwhile shows as bounds that exclude each other.
    return this.most < this.least ? Infinity : Math.max(0, performance.now() + this.most - redisMs);
  }
}

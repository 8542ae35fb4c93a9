import { performance } from 'node:perf_hooks';

const FRESH_MS = 60_000;

/**
 * A lower bound of Redis' clock, from the time that its answers carry and what has passed here since. It decides
 * nothing about leases: it only dates the moment after which an acquire that was given up must not be granted.
 */
export class RedisClock {
  private offset: number | undefined;
  private taken = 0;

  /** @param redisMs Redis' time in an answer that has just come */
  learn(redisMs: number): void {
    const now = performance.now();
    const offset = redisMs - now;
    // Redis read its clock before the answer travelled, so every sample is too low and the highest is the best;
    // an old one is replaced, for clocks drift.
    if (this.offset === undefined || offset > this.offset || now - this.taken > FRESH_MS) {
      this.offset = offset;
      this.taken = now;
    }
  }

  /** After a reconnect it may be another Redis with another clock. */
  forget(): void {
    this.offset = undefined;
  }

  get known(): boolean {
    return this.offset !== undefined;
  }

  /** Redis' clock in `ms` from now, in whole ms; 0 while it is unknown. */
  in(ms: number): number {
    return this.offset === undefined ? 0 : Math.floor(performance.now() + this.offset + ms);
  }
}

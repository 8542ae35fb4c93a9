import fc from 'fast-check';
import { age, chain, expire, flushScripts, forgetDone, loseData, outdate, restart, settled } from './events';
import { ghostClaims, ghostJoins, ghostLooks, ghostReturns, ghostsLeave } from './ghosts';
import { heartbeat, release, status, steal } from './holding';
import type { Channel } from './model';
import type { Step } from './step';
import { abort, comesBack, nudge, take, takeAgain, takeAll, wait, waitNoTime } from './taking';

/** What callers ask for in a run. */
export interface Mix {
  /** Permits. */
  limits: fc.Arbitrary<number>;
  /** Of those who hold the lock already, under their id. */
  otherLimits?: fc.Arbitrary<number>;
  /** Some want nothing of what was done before, and some leave behind that it was done. */
  once?: boolean;
  /** Some take it as one of a list. */
  lists?: boolean;
  /** Some wait as the newest of whom only the newest is served. */
  newest?: boolean;
}

/** The steps that a run is made of. */
export function steps({ limits, otherLimits = fc.nat({ max: 0 }), lists = false, once = false, newest = false }: Mix): fc.Arbitrary<Step> {
  const live = fc.constantFrom<Channel>('a', 'b', 'c');
  const ghost = fc.constantFrom<Channel>('frozen', 'dead');
  const hold = fc.constantFrom<string[]>([], [], ['x'], ['y']);
  const ways = (channel: fc.Arbitrary<Channel>) =>
    fc.record({ channel, limit: limits, hold, once: fc.constantFrom(false, once), newest: fc.constantFrom(false, newest, newest), settles: fc.constantFrom(false, false, true) });
  const pick = fc.nat({ max: 11 });
  const some = <T extends unknown[]>(weight: number, make: (...args: T) => Step, ...args: { [K in keyof T]: fc.Arbitrary<T[K]> }) => ({
    weight,
    arbitrary: fc.tuple(...args).map((values) => make(...(values as T))),
  });
  return fc.oneof(
    some(8, take, ways(live), fc.boolean()),
    some(newest ? 12 : 8, wait, ways(live)),
    some(3, waitNoTime, ways(live), fc.boolean()),
    some(lists ? 2 : 0, takeAll, ways(live), fc.constantFrom('nothing', 'taken')),
    some(3, comesBack, pick),
    some(once || newest ? 4 : 2, takeAgain, pick, hold, live, otherLimits),
    some(2, abort, pick),
    some(3, nudge, pick),
    some(5, heartbeat, pick, fc.constantFrom(0, 120_000)),
    some(9, release, pick, once ? fc.constantFrom('no', 'no', 'done', 'with a result') : fc.constant('no')),
    some(4, steal, ways(live), fc.constantFrom('stale', 'silent', 'noTtl', 'any', 'fencingToken'), pick),
    some(once ? 6 : 4, ghostJoins, ways(ghost)),
    some(3, ghostReturns, pick),
    some(2, ghostLooks, pick),
    some(3, ghostClaims, pick, pick),
    some(once || newest ? 4 : 2, ghostsLeave, fc.array(pick, { minLength: 1, maxLength: 3 }), fc.constantFrom('take', 'back', 'unclaimed'), fc.constantFrom('nothing', 'place', 'ifItMay')),
    some(6, expire, pick),
    some(3, age, pick),
    some(newest ? 3 : 1, outdate, pick),
    some(once ? 3 : 0, forgetDone),
    some(newest ? 3 : 0, settled, pick),
    some(4, chain, fc.constantFrom('INCR', 'SET', 'SET PX', 'DEL', 'DEL', 'PEXPIRE short', 'PEXPIRE long')),
    some(1, loseData),
    some(1, flushScripts),
    some(1, status, live),
    some(1, restart, fc.nat({ max: 19 })),
  );
}

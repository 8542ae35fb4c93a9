import type { Acquired, Lock } from './lock';
import type { Busy, OfKey, TimedOut } from './types';
import { keepRenewed } from './using';

/** Several locks are waited for one after the other, always in the same order, so that no two callers wait for each other. */

/** What it takes to have several locks. */
export interface Taking {
  /** The keys in that order. */
  keys: string[];
  /** All of them at once, or none. */
  atOnce(): Promise<{ outcome: 'acquired'; locks: Lock[] } | (Busy & OfKey)>;
  /** One of them, waiting until a deadline (by `performance.now()`) or until `signal`. */
  one(i: number, deadline: number, signal: AbortSignal): Promise<Acquired | Busy | TimedOut>;
}

export type Several = { outcome: 'acquired'; locks: Lock[] } | (Busy & OfKey) | (TimedOut & OfKey);

/** @param waitMs undefined: not at all @throws the reason of `signal` · RedisLockError; then nothing is held */
export async function takeAll(taking: Taking, waitMs: number | undefined, ttlMs: number, signal: AbortSignal | undefined): Promise<Several> {
  const started = performance.now();
  const first = await taking.atOnce();
  if (first.outcome === 'acquired' || waitMs === undefined) return first;
  const deadline = started + waitMs;
  for (;;) {
    const result = await inOrder(taking, deadline, ttlMs, signal);
    if (result === 'lost') continue;
    return result.outcome === 'timedOut' ? { ...result, waitedMs: Math.round(performance.now() - started) } : result;
  }
}

/** @returns `lost` where one that was taken already was lost while another was waited for: all over again */
async function inOrder({ keys, one }: Taking, deadline: number, ttlMs: number, signal: AbortSignal | undefined): Promise<Several | 'lost'> {
  const taken: Array<{ lock: Lock; renewal: ReturnType<typeof keepRenewed> }> = [];
  // Those that it has are kept alive meanwhile; one that is lost ends the wait for the next.
  const lost = new AbortController();
  const signals = signal ? AbortSignal.any([signal, lost.signal]) : lost.signal;
  const renewEveryMs = Math.max(1, Math.floor(ttlMs / 3));
  try {
    for (const [i, key] of keys.entries()) {
      const result = await one(i, deadline, signals);
      if (result.outcome !== 'acquired') {
        await giveBack(taken);
        return { ...result, key };
      }
      const renewal = keepRenewed(result.lock, renewEveryMs);
      renewal.signal.addEventListener('abort', () => lost.abort(renewal.signal.reason));
      taken.push({ lock: result.lock, renewal });
    }
    // From here on the caller renews them, who thinks of them as fresh.
    await Promise.all(taken.map(async ({ renewal }) => await renewal.stop()));
    const beats = await Promise.all(taken.map(async ({ lock }) => await lock.heartbeat()));
    if (beats.every(({ outcome }) => outcome === 'alive')) return { outcome: 'acquired', locks: taken.map(({ lock }) => lock) };
  } catch (error) {
    if (!lost.signal.aborted || signal?.aborted) {
      await giveBack(taken);
      return Promise.reject(error);
    }
  }
  await giveBack(taken);
  return 'lost';
}

/** With Redis away the leases end by themselves. */
async function giveBack(taken: Array<{ lock: Lock; renewal: ReturnType<typeof keepRenewed> }>): Promise<void> {
  await Promise.all(
    taken.map(async ({ lock, renewal }) => {
      await renewal.stop();
      await lock.release().catch(() => {});
    }),
  );
}

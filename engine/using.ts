import { LONGEST_TIMER } from './line';
import type { Acquired, Lock } from './lock';
import type { AcquireOptions, Alive, AlreadyReleased, Busy, Lost, NotHeld, Released, TimedOut } from './types';

export type UsingOptions = Omit<AcquireOptions, 'renewEveryMs' | 'hold'>;

export type UsingResult<T> =
  | {
      outcome: 'done';
      value: T;
      /** How the lock ended: anything but `released` says that the work was not protected to its end. */
      release: Released | AlreadyReleased | NotHeld;
    }
  | Busy
  | TimedOut;

/** See `Locks.using`. @param acquire told how often the lease will be renewed */
export async function using<T>(
  ttlMs: number,
  acquire: (renewEveryMs: number) => Promise<Acquired | Busy | TimedOut>,
  work: (lock: Lock, signal: AbortSignal) => Promise<T>,
): Promise<UsingResult<T>> {
  const renewEveryMs = Math.max(1, Math.floor(ttlMs / 3));
  const result = await acquire(renewEveryMs);
  if (result.outcome !== 'acquired') return result;
  const { lock } = result;
  const renewal = keepRenewed(lock, renewEveryMs);
  let value: T;
  try {
    value = await work(lock, renewal.signal);
  } catch (error) {
    await renewal.stop();
    // The work's own error is what the caller has to see; a release that fails too ends with the lease.
    await lock.release().catch(() => {});
    return Promise.reject(error);
  }
  await renewal.stop();
  return { outcome: 'done', value, release: await lock.release() };
}

/** Renews until stopped; the signal is aborted, with the reason, when the lock is lost or its lease may have run out. */
export function keepRenewed(lock: Lock, everyMs: number): { signal: AbortSignal; stop: () => Promise<void> } {
  const lost = new AbortController();
  let inFlight: Promise<void> | undefined;
  let renewal: NodeJS.Timeout | undefined;
  let end: NodeJS.Timeout | undefined;
  let stopped = false;
  const stopTimers = () => {
    clearTimeout(renewal);
    clearTimeout(end);
  };
  const lose = (text: string) => {
    stopTimers();
    lost.abort(new Error(text));
  };
  const hear = (answer: Alive | Lost | undefined) => {
    if (answer?.outcome === 'lost') lose(`The lock "${lock.key}" was lost: ${answer.reason}.`);
  };
  const renewIn = (ms: number) => {
    renewal = setTimeout(() => {
      // Redis can't be asked: by our clock (below) the lease goes on for a while, and the next attempt may succeed.
      const beat = lock.heartbeat().catch((): undefined => undefined);
      inFlight = beat.then(hear).finally(() => {
        inFlight = undefined;
        if (!stopped && !lost.signal.aborted) renewIn(everyMs);
      });
    }, ms);
    renewal.unref();
  };
  // On its own: an answer that fails to come must not delay the end of the work beyond the end of its lease.
  const watch = () => {
    const left = lock.expiresInMs();
    if (left === 0) {
      lose(`The lock "${lock.key}" could not be renewed in time.`);
      return;
    }
    end = setTimeout(watch, Math.min(left, LONGEST_TIMER));
    end.unref();
  };
  const begin = () => {
    if (stopped || lost.signal.aborted) return;
    // At once where the grant took so long that a third of the lease is gone already.
    renewIn(Math.min(LONGEST_TIMER, Math.max(0, everyMs - (lock.ttlMs - lock.expiresInMs()))));
  };
  watch();
  if (lock.claim) {
    void lock.claim.then((answer) => {
      hear(answer);
      begin();
    });
  } else {
    begin();
  }
  return {
    signal: lost.signal,
    async stop() {
      stopped = true;
      stopTimers();
      // A renewal in flight must not overtake the release.
      await inFlight;
    },
  };
}

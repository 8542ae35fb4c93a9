import type { Lock } from './lock';
import type { AcquireOptions, AlreadyReleased, Busy, Lost, NotHeld, Released, TimedOut } from './types';

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
  acquire: (renewEveryMs: number) => Promise<{ outcome: 'acquired'; lock: Lock } | Busy | TimedOut>,
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
function keepRenewed(lock: Lock, everyMs: number): { signal: AbortSignal; stop: () => Promise<void> } {
  const lost = new AbortController();
  let inFlight: Promise<void> | undefined;
  const renew = async () => {
    // Redis can't be asked: by our clock (below) the lease goes on for a while, and the next attempt may succeed.
    const answer = await lock.heartbeat().catch((): Lost | undefined => undefined);
    if (answer?.outcome === 'lost') lost.abort(new Error(`The lock "${lock.key}" was lost: ${answer.reason}.`));
  };
  void lock.claim?.then((answer) => {
    if (answer.outcome === 'lost') lost.abort(new Error(`The lock "${lock.key}" was lost: ${answer.reason}.`));
  });
  const timer = setInterval(() => {
    // An answer that fails to come must not delay the end of the work beyond the end of its lease.
    if (lock.expiresInMs() === 0) lost.abort(new Error(`The lock "${lock.key}" could not be renewed in time.`));
    if (lost.signal.aborted) clearInterval(timer);
    else inFlight ??= renew().finally(() => (inFlight = undefined));
  }, everyMs);
  timer.unref();
  return {
    signal: lost.signal,
    async stop() {
      clearInterval(timer);
      // A renewal in flight must not overtake the release.
      await inFlight;
    },
  };
}

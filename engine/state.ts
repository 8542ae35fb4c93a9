import type { ForeignHolder, Holder, LockState } from './types';

const EXPIRING_MS = 30_000;

/** The holder announced renewals and missed three, by Redis' clock. */
export const isStale = ({ renewEveryMs, silentMs }: Holder) => renewEveryMs > 0 && silentMs > 3 * renewEveryMs;

/** Less than a quarter of the lease is left, and less than half a minute. */
const isExpiring = ({ expiresInMs, ttlMs }: Holder) => expiresInMs < Math.min(EXPIRING_MS, ttlMs / 4);

/** One word for a person who looks at a lock. */
export function lockState(holders: Array<Holder | ForeignHolder>, isDone: boolean): LockState {
  const [first] = holders;
  if (!first) return isDone ? 'doneMark' : 'free';
  if ('foreign' in first) return first.expiresInMs < 0 ? 'noTtl' : 'foreign';
  const own = holders as Holder[];
  if (own.some(isStale)) return 'stale';
  return own.some(isExpiring) ? 'expiring' : 'held';
}

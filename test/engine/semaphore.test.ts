import fc from 'fast-check';
import type { Lock } from '../../engine';
import { newKey, take, useBed } from './support/bed';
import { expire } from './support/state';

describe('a semaphore', () => {
  const bed = useBed();

  it('F52: never has more holders than its limit, whatever comes and goes', async () => {
    const engines = [bed.locks(), bed.locks()];
    const moves = fc.array(fc.record({ engine: fc.constantFrom(0, 1), release: fc.nat(), acquires: fc.nat(3), waits: fc.boolean() }), { maxLength: 20 });
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 1, max: 4 }), moves, async (limit, run) => {
        const key = newKey();
        const held: Lock[] = [];
        for (const { engine, release, acquires, waits } of run) {
          const calls = Array.from({ length: acquires }, () =>
            engines[engine]!.acquire(key, { ttlMs: 30_000, limit, ...(waits && { waitMs: 0 }) }),
          );
          const [gone] = held.length > 0 ? held.splice(release % held.length, 1) : [];
          await gone?.release();
          for (const result of await Promise.all(calls)) if (result.outcome === 'acquired') held.push(result.lock);
          const { holders, queue } = await engines[0]!.status(key);
          expect(holders.length).toBeLessThanOrEqual(limit);
          expect(holders).toHaveLength(held.length);
          expect(queue).toBe(0);
        }
      }),
      { numRuns: 60 },
    );
  }, 30_000);

  it('F49, F51: costs a permit for its TTL where a holder crashed, and not longer', async () => {
    const locks = bed.locks();
    const key = newKey();
    const crashed = await take(locks, key, { limit: 2 });
    await take(locks, key, { limit: 2 });
    expect((await locks.acquire(key, { ttlMs: 1000, limit: 2 })).outcome).toBe('busy');
    await expire(bed.redis, key, crashed.lockId, { keepKey: true });
    expect((await locks.acquire(key, { ttlMs: 30_000, limit: 2 })).outcome).toBe('acquired');
    expect(await crashed.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'expired' });
  });

  describe('of callers with different limits', () => {
    it('has room by the smallest limit among its holders and the caller', async () => {
      const locks = bed.locks();
      const key = newKey();
      const wide = await take(locks, key, { limit: 3 });
      // The caller's own limit is in the way.
      expect(await locks.acquire(key, { ttlMs: 1000, limit: 1 })).toMatchObject({ outcome: 'busy', reason: 'held' });
      const narrow = await take(locks, key, { limit: 2 });
      // A holder's limit is in the way, and it is said whose.
      expect(await locks.acquire(key, { ttlMs: 1000, limit: 3 })).toMatchObject({
        outcome: 'busy',
        reason: 'otherLimit',
        holders: [{ limit: 2 }, { limit: 3 }],
      });
      await narrow.release();
      await take(locks, key, { limit: 3 });
      await take(locks, key, { limit: 3 });
      expect(await locks.acquire(key, { ttlMs: 1000, limit: 4 })).toMatchObject({ outcome: 'busy', reason: 'otherLimit' });
      expect((await wide.heartbeat()).outcome).toBe('alive');
    });

    it('does not revive a lease into company that it did not allow', async () => {
      const locks = bed.locks();
      const key = newKey();
      const alone = await take(locks, key, { limit: 1 });
      await expire(bed.redis, key, alone.lockId);
      const other = await take(locks, key, { limit: 5 });
      expect(await alone.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'expired', by: { fencingToken: other.fencingToken } });
      expect((await locks.status(key)).holders).toHaveLength(1);
    });

    it('serves a waiter when the holder that stood in its way goes', async () => {
      const locks = bed.locks();
      const key = newKey();
      await take(locks, key, { limit: 2 });
      const narrow = await take(locks, key, { limit: 2 });
      const waiting = locks.acquire(key, { ttlMs: 30_000, limit: 2, waitMs: 10_000 });
      await narrow.release();
      expect((await waiting).outcome).toBe('acquired');
    });
  });
});

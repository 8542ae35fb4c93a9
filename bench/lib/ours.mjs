import { createRequire } from 'node:module';

const { createLocks } = createRequire(import.meta.url)('../../index.js');

/** This package, through its public API only. `ownerOf` makes the owner of each acquire. */
export function oursAdapter(name, ownerOf) {
  return {
    name,
    traits: { ours: true },
    async create(redisUrl) {
      const locks = createLocks({ url: redisUrl });
      return {
        async acquire(key, ttlMs, waitMs) {
          const wait = waitMs === 0 ? {} : { waitMs };
          const result = await locks.acquire(key, { ttlMs, owner: ownerOf(), ...wait });
          if (result.outcome === 'acquired') return result.lock;
          // Only a line that is full makes a waiter busy, and that is no plain time-out.
          if (result.outcome === 'busy' && waitMs > 0) throw new Error(`busy: ${result.reason}`);
          return null;
        },
        async release(lock) {
          const { outcome } = await lock.release();
          if (outcome !== 'released') throw new Error(`release: ${outcome}`);
        },
        extend: (lock, ttlMs) => lock.heartbeat(ttlMs),
        close: () => locks.close(),
      };
    },
  };
}

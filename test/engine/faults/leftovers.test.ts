import { newKey, take, useBed, wait, won } from '../support/bed';
import { startChild } from '../support/child';
import { inLine } from '../support/state';
import { until } from '../support/until';

/** What stays behind when processes die, and in Redis after many locks. */
describe('what is left', () => {
  const bed = useBed();

  it('F49: by a holder that was killed in whatever state is a lease or a place with an end, never a permit that is gone', async () => {
    const key = newKey();
    const locks = bed.locks();
    const permits = { ttlMs: 4000, limit: 2 };
    const holding = await startChild(bed.server.url);
    await holding.acquire('lock', key, permits);
    await holding.acquire('other', key, permits);
    const waiting = await startChild(bed.server.url);
    void waiting.acquire('lock', key, { ...permits, waitMs: 60_000 });
    await inLine(bed.redis, key, 1);
    await Promise.all([holding.stop(), waiting.stop()]);
    const both = await Promise.all([won(wait(locks, key, { limit: 2 })), won(wait(locks, key, { limit: 2 }))]);
    expect((await locks.status(key)).holders).toHaveLength(2);
    await Promise.all(both.map((lock) => lock.release()));
    expect(await locks.status(key)).toMatchObject({ state: 'free' });
  }, 20_000);

  it('F55: of several locks of one execution ends with their leases when its process is killed', async () => {
    const keys = [newKey(), newKey(), newKey()];
    const child = await startChild(bed.server.url);
    for (const [i, key] of keys.entries()) await child.acquire(String(i), key, { ttlMs: 800 });
    await child.stop();
    const locks = bed.locks();
    for (const key of keys) expect((await won(wait(locks, key))).grant.waitedMs).toBeLessThan(6000);
  }, 20_000);

  it('F57: by 10,000 different locks is nothing, once their times are over', async () => {
    const locks = bed.locks({ fencingRetentionMs: 1500 });
    const before = await bed.redis.dbsize();
    let next = 0;
    const work = async () => {
      while (next < 10_000) await (await take(locks, `many:${next++}`, { ttlMs: 200 })).release();
    };
    await Promise.all(Array.from({ length: 50 }, work));
    await until(async () => {
      // Reading makes Redis drop what has run out.
      await bed.redis.scan('0', 'COUNT', 20_000);
      return (await bed.redis.dbsize()) <= before;
    }, 10_000);
  }, 40_000);

  it('F67: of one who leaves the line is an answer: nobody leaves it silently', async () => {
    const key = newKey();
    const locks = bed.locks();
    const holder = await take(locks, key);
    const stop = new AbortController();
    const waits = [
      wait(locks, key, { waitMs: 300 }),
      wait(locks, key),
      locks.acquire(key, { ttlMs: 1000, waitMs: 20_000, signal: stop.signal }).catch((error: Error) => error.message),
    ];
    await inLine(bed.redis, key, 3);
    expect(await locks.acquire(key, { ttlMs: 1000 })).toMatchObject({ outcome: 'busy', queue: 3 });
    stop.abort(new Error('stopped'));
    expect(await waits[2]).toBe('stopped');
    expect(await waits[0]).toMatchObject({ outcome: 'timedOut', queue: 1 });
    await holder.release();
    expect(await waits[1]).toMatchObject({ outcome: 'acquired' });
  });
});

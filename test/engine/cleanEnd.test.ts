import { newKey, take, useBed } from './support/bed';
import { age, expire, inLine } from './support/state';
import { until } from './support/until';

/** After any run and its TTLs no key is left, and at no time is there one without a TTL. */
describe('what is left behind', () => {
  const bed = useBed();
  const owner = (executionId: string) => ({ instanceId: 'i', executionId });

  it('F14: is nothing, once all leases, waits and the retention of the fencing tokens are over', async () => {
    const locks = bed.locks({ fencingRetentionMs: 100 });
    const options = { ttlMs: 300 };
    for (let i = 0; i < 10; i++) {
      const key = newKey();
      const lock = await take(locks, key, { ...options, owner: owner(String(i)), renewEveryMs: 10 });
      const waits = [1, 2, 3].map(() => locks.acquire(key, { ...options, waitMs: 50, owner: owner(`w${i}`) }));
      if (i % 5 === 0) await lock.release();
      if (i % 5 === 1) await bed.redis.del(key);
      if (i % 5 === 2) await age(bed.redis, key, lock.lockId, 1000);
      if (i % 5 === 2) await locks.steal(key, { if: 'stale', ttlMs: 300 });
      if (i % 5 === 3) await expire(bed.redis, key, lock.lockId);
      if (i % 5 === 4) await bed.redis.set(key, '1', 'PX', 200);
      await Promise.all(waits);
      expect(await bed.keysWithoutTtl()).toEqual([]);
    }
    await bed.closeLocks();
    await until(async () => (await bed.redis.keys('*')).every((key) => /:rl:(line|wait)/.test(key)), 5000);
    // A line that was left goes at once, for nobody is in it.
    expect(await bed.redis.keys('*')).toEqual([]);
  });

  it('F13: does not grow with the number of attempts', async () => {
    const locks = bed.locks();
    const key = newKey();
    const sizes = [];
    for (let round = 0; round < 3; round++) {
      for (let i = 0; i < 40; i++) {
        const lock = await take(locks, key);
        await locks.acquire(key, { ttlMs: 1000 });
        await locks.acquire(key, { ttlMs: 1000, waitMs: 0 });
        await lock.release();
      }
      sizes.push([(await bed.redis.keys(`*${key}*`)).length, await bed.redis.hlen(`{${key}}:rl:lock`)]);
    }
    expect(sizes).toEqual([sizes[0], sizes[0], sizes[0]]);
    expect(sizes[0]![0]).toBe(1);
  });

  it('F58: is one subscription for each process that waited, however much it waited', async () => {
    const [a, b] = [bed.locks(), bed.locks()];
    await Promise.all(
      Array.from({ length: 30 }, async (_, i) => {
        const key = newKey();
        const lock = await take(a, key);
        const waiting = (i % 2 ? a : b).acquire(key, { ttlMs: 1000, waitMs: 5000 });
        await until(async () => (await a.status(key)).queue === 1);
        await lock.release();
        await waiting;
      }),
    );
    expect(((await bed.redis.pubsub('CHANNELS', '*')) as string[]).length).toBe(2);
    await bed.closeLocks();
    await until(async () => ((await bed.redis.pubsub('CHANNELS', '*')) as string[]).length === 0);
    expect(String(await bed.redis.client('LIST'))).not.toContain('n8n-nodes-redis-lock');
  });

  it('has a TTL also where a grant was not claimed and the line had become empty', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key);
    const waiting = locks.acquire(key, { ttlMs: 1000, waitMs: 10_000 });
    await inLine(bed.redis, key, 1);
    const deaf = (locks as unknown as { waiters: { handOver(message: unknown): void } }).waiters;
    deaf.handOver = () => {};
    await holder.release();
    const id = (await bed.redis.hkeys(`{${key}}:rl:lock`)).find((field) => field.startsWith('@'))!.slice(1);
    await expire(bed.redis, key, id);
    // Anybody's next call finds that it was not claimed. The newcomer does not wait, and nobody else answers.
    expect((await bed.locks().acquire(key, { ttlMs: 500 })).outcome).toBe('acquired');
    expect((await locks.status(key)).queue).toBe(1);
    expect(await bed.keysWithoutTtl()).toEqual([]);
    expect((await waiting).outcome).toBe('acquired');
  }, 15_000);
});

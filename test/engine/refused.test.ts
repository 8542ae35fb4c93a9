import { createLocks, RedisLockError, type Locks, type Source } from '../../engine';
import { startRedis } from '../../scripts/lib/redis';
import { freePort } from '../../scripts/lib/ports';
import { newKey, take, useBed } from './support/bed';
import { timed, until } from './support/until';

const SECRET = 'geheim-7f3a';

/** Redis says no, or is not there. */
describe('a Redis that refuses', () => {
  const bed = useBed();
  const failing = async (source: Source, work: (locks: Locks) => Promise<unknown> = (locks) => locks.acquire(newKey(), { ttlMs: 1000 })) => {
    const locks = bed.locks({ commandTimeoutMs: 1000 }, source);
    const { ms, error } = await timed(work(locks));
    expect(error).toBeInstanceOf(RedisLockError);
    expect(String(error!.stack) + JSON.stringify(error)).not.toContain(SECRET);
    return { ms, error: error as RedisLockError, locks };
  };

  it('says within the limit that nothing answers at this port', async () => {
    const port = await freePort();
    const { ms, error } = await failing({ url: `redis://user:${SECRET}@127.0.0.1:${port}` });
    expect(error.code).toBe('unavailable');
    expect(error.message).toContain(`127.0.0.1:${port}`);
    expect(error.message).toContain('ECONNREFUSED');
    expect(ms).toBeLessThan(1500);
  });

  it('gives the same answer to many at once, without a warning about listeners', async () => {
    const warnings: Error[] = [];
    const listen = (warning: Error) => void warnings.push(warning);
    process.on('warning', listen);
    const locks = bed.locks({ commandTimeoutMs: 200 }, { url: `redis://127.0.0.1:${await freePort()}` });
    const results = await Promise.allSettled(Array.from({ length: 200 }, () => locks.acquire(newKey(), { ttlMs: 1000 })));
    expect(results.filter(({ status }) => status === 'rejected')).toHaveLength(200);
    await new Promise((resolve) => setImmediate(resolve));
    process.off('warning', listen);
    expect(warnings).toEqual([]);
  });

  it('refuses a wrong password at once, and works as soon as it is right', async () => {
    await bed.redis.acl('SETUSER', 'locker', 'on', `>${SECRET}`, '~*', '&*', '+@all');
    const source = { options: { host: bed.server.host, port: bed.server.port, username: 'locker', password: `${SECRET}-wrong` } };
    const { ms, error, locks } = await failing(source);
    expect(error.code).toBe('auth');
    expect(ms).toBeLessThan(500);
    // Waiting is no way around it.
    await expect(locks.acquire(newKey(), { ttlMs: 1000, waitMs: 5000 })).rejects.toMatchObject({ code: 'auth' });

    await bed.redis.acl('SETUSER', 'locker', `>${SECRET}-wrong`);
    expect((await locks.acquire(newKey(), { ttlMs: 1000 })).outcome).toBe('acquired');
  });

  it('refuses who brings no password', async () => {
    const guarded = await startRedis({ args: ['--requirepass', SECRET] });
    try {
      const { ms, error } = await failing({ url: guarded.url });
      expect(error.code).toBe('auth');
      expect(ms).toBeLessThan(500);
      const locks = createLocks({ options: { host: guarded.host, port: guarded.port, password: SECRET } });
      expect((await locks.acquire('k', { ttlMs: 1000 })).outcome).toBe('acquired');
      await locks.close();
    } finally {
      await guarded.stop();
    }
  });

  it('has no database of that number: nothing is locked in another one', async () => {
    const key = newKey();
    const { ms, error } = await failing({ options: { host: bed.server.host, port: bed.server.port, db: 99 } }, (locks) => locks.acquire(key, { ttlMs: 1000 }));
    expect(error.code).toBe('database');
    expect(ms).toBeLessThan(500);
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('is a read-only replica: status works, and all else says where to go', async () => {
    const replica = await startRedis({ args: ['--replicaof', bed.server.host, String(bed.server.port)] });
    try {
      const lock = await take(bed.locks(), newKey());
      const locks = bed.locks({ commandTimeoutMs: 2000 }, { url: replica.url });
      await until(async () => (await locks.status(lock.key).catch(() => undefined))?.state === 'held', 10_000, 50);
      for (const call of [
        () => locks.acquire(newKey(), { ttlMs: 1000 }),
        () => locks.acquire(newKey(), { ttlMs: 1000, waitMs: 100 }),
        () => locks.resume(lock.key, lock).heartbeat(),
        () => locks.resume(lock.key, lock).release(),
        () => locks.steal(lock.key, { if: 'any', ttlMs: 1000 }),
      ]) {
        await expect(call()).rejects.toMatchObject({ code: 'readonly' });
      }
      expect((await lock.heartbeat()).outcome).toBe('alive');
    } finally {
      await bed.closeLocks();
      await replica.stop();
    }
  }, 20_000);

  it('F24: has forgotten its scripts between any two calls', async () => {
    const locks = bed.locks();
    const key = newKey();
    const flush = () => bed.redis.script('FLUSH');
    await flush();
    const lock = await take(locks, key);
    await flush();
    expect((await lock.heartbeat()).outcome).toBe('alive');
    await flush();
    expect((await locks.status(key)).state).toBe('held');
    await flush();
    const waiting = locks.acquire(key, { ttlMs: 1000, waitMs: 5000 });
    await until(async () => (await bed.locks().status(key)).queue === 1);
    await flush();
    expect((await lock.release()).outcome).toBe('released');
    await flush();
    const won = await waiting;
    if (won.outcome !== 'acquired') throw new Error(won.outcome);
    await flush();
    const left = await locks.acquire(key, { ttlMs: 1000, waitMs: 20 });
    expect(left.outcome).toBe('timedOut');
    await flush();
    expect((await locks.steal(key, { if: { fencingToken: won.lock.fencingToken }, ttlMs: 1000 })).outcome).toBe('stolen');
  });

  it('is busy with somebody else\'s script, and then answers', async () => {
    const locks = bed.locks();
    const lock = await take(locks, newKey());
    await bed.redis.config('SET', 'busy-reply-threshold', '50');
    const spin = "local t = redis.call('TIME') local e = t[1] * 1000 + t[2] / 1000 + 400 repeat t = redis.call('TIME') local i = 0 while i < 1000 do i = i + 1 end until t[1] * 1000 + t[2] / 1000 > e or i > 1 and redis.call('INCR', KEYS[1]) > 60000";
    const busy = bed.redis.eval(spin, 1, 'spin');
    bed.own.add('spin');
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect((await lock.heartbeat()).outcome).toBe('alive');
    await busy;
  }, 15_000);
});

describe('a Redis that is out of memory', () => {
  const bed = useBed();
  afterEach(() => bed.redis.config('SET', 'maxmemory', '0'));

  it('grants nothing and writes nothing', async () => {
    const locks = bed.locks();
    const held = await take(locks, newKey());
    const waiting = newKey();
    const before = (await bed.redis.keys('*')).sort();
    await bed.redis.config('SET', 'maxmemory', '1');

    for (const call of [
      () => locks.acquire(waiting, { ttlMs: 1000 }),
      () => locks.acquire(waiting, { ttlMs: 1000, owner: { instanceId: 'i', executionId: '1' } }),
      () => locks.acquire(held.key, { ttlMs: 1000, waitMs: 1000 }),
    ]) {
      const { error } = await timed(call());
      expect(error).toMatchObject({ name: 'RedisLockError', code: 'oom' });
    }
    expect((await bed.redis.keys('*')).sort()).toEqual(before);
    expect((await locks.status(held.key)).queue).toBe(0);
  });

  it('renews and frees all the same', async () => {
    const locks = bed.locks();
    const lock = await take(locks, newKey(), { ttlMs: 10_000 });
    await bed.redis.config('SET', 'maxmemory', '1');
    expect(await lock.heartbeat(20_000)).toMatchObject({ outcome: 'alive' });
    expect(await bed.redis.pttl(lock.key)).toBeGreaterThan(19_000);
    expect((await lock.release()).outcome).toBe('released');
    expect(await bed.redis.exists(lock.key)).toBe(0);
    expect(await lock.release()).toEqual({ outcome: 'alreadyReleased' });
  });

  it('hands over to who waits already, and lets him leave', async () => {
    const locks = bed.locks();
    const lock = await take(locks, newKey());
    const first = locks.acquire(lock.key, { ttlMs: 30_000, waitMs: 10_000 });
    await until(async () => (await locks.status(lock.key)).queue === 1);
    const second = locks.acquire(lock.key, { ttlMs: 30_000, waitMs: 500 });
    await until(async () => (await locks.status(lock.key)).queue === 2);
    await bed.redis.config('SET', 'maxmemory', '1');
    await lock.release();
    const won = await first;
    if (won.outcome !== 'acquired') throw new Error(won.outcome);
    expect((await second).outcome).toBe('timedOut');
    expect((await won.lock.release()).outcome).toBe('released');
  });
});

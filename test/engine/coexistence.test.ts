import { newKey, take, useBed } from './support/bed';
import { chain } from './support/chain';
import { dump, expire } from './support/state';
import { timed, until } from './support/until';

/** Hand-built chains on the same key, by the real commands of n8n's own Redis node. */
describe('a hand-built chain that meets our lock', () => {
  const bed = useBed();

  it('sees it as held: its INCR gives 2 or more, and its GET is not empty', async () => {
    const key = newKey();
    await take(bed.locks(), key);
    for (let i = 0; i < 20; i++) expect(await chain(bed.redis).increment(key, 60)).toBeGreaterThanOrEqual(2);
    expect(await chain(bed.redis).get(key)).toMatch(/^\d{16}$/);
  });

  it('leaves us alive, and is set back when it shortened the TTL of the key', async () => {
    const key = newKey();
    const lock = await take(bed.locks(), key);
    await chain(bed.redis).increment(key, 5);

    const beat = await lock.heartbeat();
    expect(beat).toMatchObject({ outcome: 'alive', revived: false });
    expect((beat as { keyTtlShortened: number }).keyTtlShortened).toBeGreaterThan(4000);
    expect((beat as { keyTtlShortened: number }).keyTtlShortened).toBeLessThanOrEqual(5000);
    expect(await bed.redis.pttl(key)).toBeGreaterThan(29_000);
    expect(await lock.heartbeat()).not.toHaveProperty('keyTtlShortened');
    expect((await lock.release()).outcome).toBe('released');
  });

  it('does not make us believe in a longer lease when it lengthened the TTL', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key, { ttlMs: 5000 });
    await chain(bed.redis).increment(key, 600);
    const { holders } = await locks.status(key);
    expect(holders[0]!.expiresInMs).toBeLessThanOrEqual(5000);
    expect(await lock.heartbeat()).not.toHaveProperty('keyTtlShortened');
    expect(await bed.redis.pttl(key)).toBeLessThanOrEqual(5000);
  });

  it('may end our lock by an EXPIRE that runs out before our renewal: then we are told', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    await chain(bed.redis).increment(key, 1);
    await until(async () => (await bed.redis.exists(key)) === 0);

    expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'keyDeleted' });
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', reason: 'keyDeleted' });
    expect((await take(locks, key)).fencingToken).toBeGreaterThan(lock.fencingToken);
  });

  it('cannot keep our lock alive by its losers when our lease is over', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    await chain(bed.redis).increment(key, 600);
    await expire(bed.redis, key, lock.lockId, { keepKey: true });
    expect(await bed.redis.pttl(key)).toBeGreaterThan(500_000);

    expect((await locks.status(key)).state).toBe('free');
    const next = await take(locks, key);
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'expired', by: { fencingToken: next.fencingToken } });
    expect(await bed.redis.pttl(key)).toBeLessThanOrEqual(30_000);
  });

  it('finds the key gone after our release, and counts from 1', async () => {
    const key = newKey();
    const lock = await take(bed.locks(), key);
    await chain(bed.redis).increment(key, 60);
    await lock.release();
    expect(await chain(bed.redis).increment(key, 60)).toBe(1);
  });
});

describe('a lock that a hand-built chain holds', () => {
  const bed = useBed();

  it('is busy with its TTL', async () => {
    const locks = bed.locks();
    const key = newKey();
    expect(await chain(bed.redis).increment(key, 60)).toBe(1);

    const result = await locks.acquire(key, { ttlMs: 30_000 });
    expect(result).toMatchObject({ outcome: 'busy', reason: 'foreign', holders: [{ foreign: true }] });
    const [holder] = (result as { holders: Array<{ expiresInMs: number }> }).holders;
    expect(holder!.expiresInMs).toBeGreaterThan(59_000);
    expect(holder!.expiresInMs).toBeLessThanOrEqual(60_000);
    expect(await locks.status(key)).toMatchObject({ state: 'foreign' });
  });

  it('is busy for ever without a TTL', async () => {
    const locks = bed.locks();
    const key = newKey();
    bed.own.add(key);
    await chain(bed.redis).incrementForEver(key);
    expect(await locks.acquire(key, { ttlMs: 30_000 })).toMatchObject({
      outcome: 'busy',
      reason: 'foreign',
      holders: [{ foreign: true, expiresInMs: -1 }],
    });
    expect(await locks.status(key)).toMatchObject({ state: 'noTtl' });
  });

  it('is neither renewed nor deleted by our heartbeat and release', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    await bed.redis.del(key);
    await chain(bed.redis).increment(key, 60);
    const before = [await bed.redis.get(key), await bed.redis.pexpiretime(key)];

    expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'keyOverwritten' });
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', reason: 'keyOverwritten' });
    expect(await locks.resume(key, { lockId: 'other' }).release()).toMatchObject({ outcome: 'notHeld', reason: 'foreign' });
    expect([await bed.redis.get(key), await bed.redis.pexpiretime(key)]).toEqual(before);
  });

  it('is left alone by a release that is the first to find it', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    await bed.redis.set(key, '1', 'EX', 60);
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', reason: 'keyOverwritten' });
    expect(await chain(bed.redis).get(key)).toBe('1');
  });

  it('goes to our waiter when the chain deletes it, and not to a newcomer who asks first', async () => {
    const locks = bed.locks();
    const key = newKey();
    await chain(bed.redis).increment(key, 60);
    const waiting = locks.acquire(key, { ttlMs: 30_000, waitMs: 10_000 });
    await until(async () => (await locks.status(key)).queue === 1);
    await chain(bed.redis).del(key);
    expect((await bed.locks().acquire(key, { ttlMs: 1000 })).outcome).toBe('busy');
    expect((await waiting).outcome).toBe('acquired');
  });

  it('M14: is entered by our waiter as soon as the chain deletes it or its TTL ends', async () => {
    const locks = bed.locks();
    const key = newKey();
    await bed.redis.set(key, '1', 'PX', 300);
    const result = await locks.acquire(key, { ttlMs: 30_000, waitMs: 10_000 });
    expect(result.outcome).toBe('acquired');
    expect((result as { lock: { grant: { waitedMs: number } } }).lock.grant.waitedMs).toBeLessThan(1500);
  });
});

describe('something else under the key', () => {
  const bed = useBed();
  const token = (fence: number, digits: string) => digits.replace('T', String(fence));

  it.each([
    ['text', 'hello'],
    ['a number too short', '123456789012345'],
    ['a number too long', 'T0'],
    ['a sign', '+T'],
    ['a minus', '-T'],
    ['a blank before', ' T'],
    ['a blank after', 'T '],
    ['a fraction', 'T.0'],
    ['hexadecimal', '0x65432100000000'],
    ['infinity', 'inf'],
    ['no number', 'nan'],
    ['an exponent', '1.7e+15'],
    ['an older token', '1000000000000000'],
    ['nothing', ''],
  ])('revokes the lease and is respected as held: %s', async (_, text) => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    const value = token(lock.fencingToken, text);
    await bed.redis.set(key, value, 'EX', 60);

    expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'keyOverwritten' });
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', reason: 'keyOverwritten' });
    expect(await locks.acquire(key, { ttlMs: 1000 })).toMatchObject({ outcome: 'busy', reason: 'foreign' });
    expect(await bed.redis.get(key)).toBe(value);
    expect(await bed.redis.ttl(key)).toBeGreaterThan(58);
  });

  it('revokes the lease when it was put there without a TTL', async () => {
    const locks = bed.locks();
    const key = newKey();
    bed.own.add(key);
    const lock = await take(locks, key);
    await chain(bed.redis).set(key, 'busy');
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'keyOverwritten' });
    expect(await locks.acquire(key, { ttlMs: 1000 })).toMatchObject({ reason: 'foreign', holders: [{ expiresInMs: -1 }] });
  });

  it.each([
    ['list', (key: string) => bed.redis.rpush(key, 'a')],
    ['hash', (key: string) => bed.redis.hset(key, 'a', '1')],
    ['stream', (key: string) => bed.redis.xadd(key, '*', 'a', '1')],
    ['set', (key: string) => bed.redis.sadd(key, 'a')],
  ])('is an error when it is a %s, which is left as it is', async (type, put) => {
    const locks = bed.locks();
    const key = newKey();
    bed.own.add(key);
    await put(key);
    const before = await dump(bed.redis, key);
    const handle = locks.resume(key, { lockId: 'x', fencingToken: 1 });

    for (const call of [
      () => locks.acquire(key, { ttlMs: 1000 }),
      () => locks.acquire(key, { ttlMs: 1000, waitMs: 50 }),
      () => locks.steal(key, { if: 'any', ttlMs: 1000 }),
      () => locks.status(key),
      () => handle.heartbeat(),
      () => handle.release(),
    ]) {
      await expect(call()).rejects.toMatchObject({ name: 'RedisLockError', code: 'wrongType', message: expect.stringContaining(type) });
    }
    expect(await dump(bed.redis, key)).toEqual(before);
    expect(before[key]).not.toBeNull();
  });
});

describe("an operator's DEL of the key", () => {
  const bed = useBed();

  it('F36, M9: unlocks: the holder is told, and the next one enters', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    await bed.redis.del(key);

    expect((await locks.status(key)).state).toBe('free');
    const next = await take(locks, key);
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'keyDeleted' });
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', reason: 'keyDeleted' });
    expect((await next.heartbeat()).outcome).toBe('alive');
  });

  it('F8: serves who waits, within seconds', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    const wait = locks.acquire(key, { ttlMs: 30_000, waitMs: 20_000 });
    await until(async () => (await locks.status(key)).queue === 1);
    await bed.redis.del(key);
    const { ms, value } = await timed(wait);
    expect(value!.outcome).toBe('acquired');
    // Nobody sends a message for a DEL: the waiter looks every 5 s at the latest.
    expect(ms).toBeLessThan(6000);
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', reason: 'keyDeleted' });
  }, 15_000);

  it('unlocks all permits of a semaphore', async () => {
    const locks = bed.locks();
    const key = newKey();
    const held = [await take(locks, key, { limit: 2 }), await take(locks, key, { limit: 2 })];
    await bed.redis.del(key);
    await take(locks, key, { limit: 2 });
    for (const lock of held) expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'keyDeleted' });
    await take(locks, key, { limit: 2 });
  });
});

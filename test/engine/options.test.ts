import { LockOptionError, type AcquireOptions } from '../../engine';
import { newKey, take, useBed } from './support/bed';
import { until } from './support/until';

describe('what can be asked for', () => {
  const bed = useBed();
  const asking = (options: Partial<AcquireOptions>, key = newKey()) => bed.locks().acquire(key, { ttlMs: 1000, ...options });

  it.each([
    ['ttlMs', { ttlMs: 0 }],
    ['ttlMs', { ttlMs: -1 }],
    ['ttlMs', { ttlMs: NaN }],
    ['ttlMs', { ttlMs: 0.5 }],
    ['ttlMs', { ttlMs: 9 }],
    ['ttlMs', { ttlMs: 1e15 }],
    ['ttlMs', { ttlMs: Infinity }],
    ['ttlMs', { ttlMs: '1000' as never }],
    ['ttlMs', { ttlMs: undefined as never }],
    ['waitMs', { waitMs: -1 }],
    ['waitMs', { waitMs: 1e15 }],
    ['limit', { limit: 0 }],
    ['limit', { limit: 1.5 }],
    ['limit', { limit: 1001 }],
    ['lockId', { lockId: '' }],
    ['lockId', { lockId: 'with blank' }],
    ['lockId', { lockId: 'ümlaut' }],
    ['lockId', { lockId: 'line\nbreak' }],
    ['lockId', { lockId: 'x'.repeat(129) }],
    ['owner', { owner: { note: 'x'.repeat(5000) } }],
    ['hold', { hold: '' }],
    ['hold', { hold: 'x'.repeat(257) }],
    ['renewEveryMs', { renewEveryMs: 0 }],
    ['stealIfStaleMs', { stealIfStaleMs: -1 }],
  ] as Array<[string, Partial<AcquireOptions>]>)('F41, F42: is checked before Redis is asked: %s of %j', async (option, options) => {
    const key = newKey();
    await expect(asking(options, key)).rejects.toMatchObject({ name: 'LockOptionError', option });
    expect(await bed.redis.keys(`*${key}*`)).toEqual([]);
  });

  it('F43: is rounded up, so that no lease is shorter than asked', async () => {
    expect((await take(bed.locks(), newKey(), { ttlMs: 10_000.2 })).ttlMs).toBe(10_001);
  });

  it('has bounds that themselves are allowed', async () => {
    const month = 30 * 86_400_000;
    expect((await take(bed.locks(), newKey(), { ttlMs: month, waitMs: month, limit: 1000, lockId: 'x'.repeat(128) })).ttlMs).toBe(month);
    expect((await take(bed.locks(), newKey(), { ttlMs: 10 })).ttlMs).toBe(10);
  });

  it.each([
    ['empty', ''],
    ['too long', 'x'.repeat(1025)],
    ['with a brace that closes nothing', 'a}b'],
    ['with an empty hash tag', '{}x'],
    ['with an empty hash tag before another', 'a{}{b}'],
    ['a companion', '{k}:rl:lock'],
    ['an index', 'rl:execution:i:1'],
  ])('refuses a key that is %s', async (_, key) => {
    const locks = bed.locks();
    expect(() => locks.resume(key, { lockId: 'x' })).toThrow(LockOptionError);
    await expect(locks.acquire(key, { ttlMs: 1000 })).rejects.toMatchObject({ option: 'key' });
    await expect(locks.status(key)).rejects.toMatchObject({ option: 'key' });
  });

  it.each([['x'.repeat(1024)], ['a{b}c'], ['a{b'], ['with "quotes", bläncks\nand breaks'], ['%d %s %%'], ['w4:*?[a]']])('M4: locks %j', async (key) => {
    const locks = bed.locks();
    const lock = await take(locks, key);
    const waiting = locks.acquire(key, { ttlMs: 1000, waitMs: 10_000 });
    await until(async () => (await locks.status(key)).queue === 1);
    expect(await bed.redis.get(key)).toBe(String(lock.fencingToken));
    await lock.release();
    const won = await waiting;
    expect(won).toMatchObject({ outcome: 'acquired', lock: { key } });
  });

  it('puts the companions of a key with a hash tag of its own under that tag', async () => {
    await take(bed.locks(), 'x{tag}y');
    expect(await bed.redis.keys('*tag*')).toEqual(expect.arrayContaining(['x{tag}y', '{tag}:rl:lock:x{tag}y']));
  });
});

describe('where it locks', () => {
  const bed = useBed();

  it('F64, M8: is the database of the address', async () => {
    const key = newKey();
    const lock = await take(bed.locks({}, { url: `${bed.server.url}/5` }), key);
    expect(await bed.redis.exists(key)).toBe(0);
    const five = bed.client({ db: 5 });
    expect(await five.get(key)).toBe(String(lock.fencingToken));
    expect((await bed.locks().acquire(key, { ttlMs: 1000 })).outcome).toBe('acquired');
    expect((await bed.locks({}, { options: { host: bed.server.host, port: bed.server.port, db: 5 } }).acquire(key, { ttlMs: 1000 })).outcome).toBe('busy');
    await five.flushdb();
  });

  it.each(['app:', '{app}:', 'a{b}c:'])('F64: is under the key prefix of the client: %s', async (keyPrefix) => {
    const redis = bed.client({ keyPrefix });
    const locks = bed.locks({}, { redis });
    const key = newKey();
    const owner = { instanceId: 'i', executionId: keyPrefix };
    const lock = await take(locks, key, { owner });
    expect(await bed.redis.get(keyPrefix + key)).toBe(String(lock.fencingToken));
    expect(await bed.redis.exists(key)).toBe(0);

    const waiting = bed.locks({}, { redis }).acquire(key, { ttlMs: 1000, waitMs: 10_000 });
    await until(async () => (await locks.status(key)).queue === 1);
    const names = [];
    for await (const state of locks.list({ match: 'w4:*' })) names.push(state.key);
    expect(names).toEqual([key]);
    expect(await locks.heldBy(owner)).toEqual([{ key, lockId: lock.lockId }]);
    await lock.release();
    expect((await waiting).outcome).toBe('acquired');
  });

  it('is the client that was handed in, which is left open and without our listeners', async () => {
    const redis = bed.client();
    const listeners = () => redis.eventNames().map((name) => [name, redis.listenerCount(name)]);
    await redis.ping();
    const before = listeners();
    const locks = bed.locks({}, { redis });
    await (await take(locks, newKey())).release();
    await locks.close();
    expect(await redis.ping()).toBe('PONG');
    expect(listeners()).toEqual(before);
    await expect(locks.status(newKey())).rejects.toMatchObject({ code: 'closed' });
  });

  it('is not connected by a client that was closed', async () => {
    const redis = bed.client({ lazyConnect: true });
    redis.disconnect();
    await expect(bed.locks({}, { redis }).acquire(newKey(), { ttlMs: 1000 })).rejects.toMatchObject({ code: 'closed' });
  });

  it('asks again when the client itself did not wait for the answer, and has one lock', async () => {
    const redis = bed.client({ commandTimeout: 100 });
    const locks = bed.locks({ commandTimeoutMs: 1000 }, { redis });
    const key = newKey();
    await (await take(locks, newKey())).release();
    await bed.redis.client('PAUSE', 300);
    const lock = await take(locks, key);
    expect((await locks.status(key)).holders).toMatchObject([{ fencingToken: lock.fencingToken }]);

    await bed.redis.client('PAUSE', 1300);
    const other = newKey();
    await expect(locks.acquire(other, { ttlMs: 60_000 })).rejects.toMatchObject({ code: 'unavailable' });
    await until(async () => (await bed.locks().acquire(other, { ttlMs: 1000 })).outcome === 'acquired');
  });
});

describe('the list of locks', () => {
  const bed = useBed();

  it('names what is held, ours and foreign, and neither companions nor what is free or no lock', async () => {
    const locks = bed.locks();
    const owner = { instanceId: 'i', executionId: '1' };
    const keys = Array.from({ length: 300 }, (_, i) => `l:held:${i}`);
    await Promise.all(keys.map((key) => take(locks, key, { owner })));
    await take(locks, 'l:{tag}:held');
    await (await take(locks, 'l:free')).release();
    await bed.redis.set('l:foreign', '1', 'EX', 60);
    await bed.redis.rpush('l:list', 'x');
    await bed.redis.set('l:}odd', '1', 'EX', 60);
    await bed.redis.expire('l:list', 60);

    const found = new Map<string, string>();
    for await (const { key, state } of locks.list({ match: '*' })) {
      expect(found.has(key)).toBe(false);
      found.set(key, state);
    }
    expect([...found.keys()].sort()).toEqual([...keys, 'l:{tag}:held', 'l:foreign'].sort());
    expect(found.get('l:foreign')).toBe('foreign');
    expect(found.get('l:held:0')).toBe('held');
  });
});

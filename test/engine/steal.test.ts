import { newKey, take, useBed } from './support/bed';
import { chain } from './support/chain';
import { age, expire } from './support/state';

describe('steal', () => {
  const bed = useBed();

  it('takes a lock from a holder that missed three of the renewals it announced', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key, { renewEveryMs: 1000, owner: { executionId: 'old' } });
    const steal = (owner = { executionId: 'thief' }) => locks.steal(key, { if: 'stale', ttlMs: 20_000, owner });

    expect(await steal()).toMatchObject({ outcome: 'notStolen', reason: 'notStale' });
    await age(bed.redis, key, lock.lockId, 1500);
    expect(await steal()).toMatchObject({ outcome: 'notStolen', reason: 'notStale' });
    await age(bed.redis, key, lock.lockId, 1600);
    expect((await locks.status(key)).state).toBe('stale');

    const stolen = await steal();
    if (stolen.outcome !== 'stolen') throw new Error(stolen.reason);
    expect(stolen.lock.grant.robbed).toMatchObject({ fencingToken: lock.fencingToken, owner: { executionId: 'old' } });
    expect(stolen.lock.fencingToken).toBeGreaterThan(lock.fencingToken);
    expect(await bed.redis.get(key)).toBe(String(stolen.lock.fencingToken));
    expect(await bed.redis.pttl(key)).toBeLessThanOrEqual(20_000);

    const by = { fencingToken: stolen.lock.fencingToken, owner: { executionId: 'thief' } };
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'stolen', by });
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', reason: 'stolen', by });
    expect((await stolen.lock.release()).outcome).toBe('released');
  });

  it('takes no holder for stale that announced nothing, unless told after how long', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    await age(bed.redis, key, lock.lockId, 10_000);
    expect(await locks.steal(key, { if: 'stale', ttlMs: 1000 })).toMatchObject({ reason: 'notStale' });
    expect(await locks.steal(key, { if: 'stale', staleMs: 11_000, ttlMs: 1000 })).toMatchObject({ reason: 'notStale' });
    expect((await locks.steal(key, { if: 'stale', staleMs: 9000, ttlMs: 1000 })).outcome).toBe('stolen');
  });

  it('F62: does not rob a holder whose heartbeat is fresh', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key, { renewEveryMs: 1000 });
    await age(bed.redis, key, lock.lockId, 10_000);
    await lock.heartbeat();
    expect(await locks.steal(key, { if: 'stale', ttlMs: 1000 })).toMatchObject({ reason: 'notStale' });
  });

  it('takes a foreign key without TTL, and one with a TTL only by `any`', async () => {
    const locks = bed.locks();
    const [endless, ending] = [newKey(), newKey()];
    await chain(bed.redis).incrementForEver(endless);
    await chain(bed.redis).increment(ending, 60);

    expect(await locks.steal(ending, { if: 'noTtl', ttlMs: 1000 })).toMatchObject({ outcome: 'notStolen', reason: 'hasTtl' });
    expect(await locks.steal(ending, { if: 'stale', ttlMs: 1000 })).toMatchObject({ outcome: 'notStolen', reason: 'foreign' });
    expect(await bed.redis.get(ending)).toBe('1');

    const stolen = await locks.steal(endless, { if: 'noTtl', ttlMs: 5000 });
    expect(stolen).toMatchObject({ outcome: 'stolen', lock: { grant: { robbed: { foreign: true } } } });
    expect(await bed.redis.pttl(endless)).toBeLessThanOrEqual(5000);
    expect((await locks.steal(ending, { if: 'any', ttlMs: 5000 })).outcome).toBe('stolen');
  });

  it('takes exactly the holder that was seen', async () => {
    const locks = bed.locks();
    const key = newKey();
    const seen = await take(locks, key);
    await seen.release();
    const next = await take(locks, key);
    expect(await locks.steal(key, { if: { fencingToken: seen.fencingToken }, ttlMs: 1000 })).toMatchObject({
      outcome: 'notStolen',
      reason: 'otherHolder',
      holders: [{ fencingToken: next.fencingToken }],
    });
    expect((await locks.steal(key, { if: { fencingToken: next.fencingToken }, ttlMs: 1000 })).outcome).toBe('stolen');
  });

  it('leaves a grant alone for its first five seconds with `any`', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    await age(bed.redis, key, lock.lockId, 4000);
    expect(await locks.steal(key, { if: 'any', ttlMs: 1000 })).toMatchObject({ outcome: 'notStolen', reason: 'tooYoung' });
    await age(bed.redis, key, lock.lockId, 1100);
    expect((await locks.steal(key, { if: 'any', ttlMs: 1000 })).outcome).toBe('stolen');
  });

  it.each(['stale', 'any', 'fencingToken', 'noTtl'] as const)('F69: has exactly one winner among 8 (%s)', async (condition) => {
    const key = newKey();
    if (condition === 'noTtl') await chain(bed.redis).incrementForEver(key);
    else {
      const lock = await take(bed.locks(), key, { renewEveryMs: 1000 });
      await age(bed.redis, key, lock.lockId, 10_000);
    }
    const token = Number(await bed.redis.get(key));
    const contenders = Array.from({ length: 8 }, () => bed.locks());
    const results = await Promise.all(
      contenders.map((locks) => locks.steal(key, { if: condition === 'fencingToken' ? { fencingToken: token } : condition, ttlMs: 30_000, renewEveryMs: 1000 })),
    );
    expect(results.filter(({ outcome }) => outcome === 'stolen')).toHaveLength(1);
  });

  it('does not steal what is free', async () => {
    const locks = bed.locks();
    const key = newKey();
    expect(await locks.steal(key, { if: 'any', ttlMs: 1000 })).toMatchObject({ outcome: 'notStolen', reason: 'free' });
    const lock = await take(locks, key);
    await expire(bed.redis, key, lock.lockId);
    for (const condition of ['any', 'stale', 'noTtl', { fencingToken: lock.fencingToken }] as const) {
      expect(await locks.steal(key, { if: condition, ttlMs: 1000 })).toMatchObject({ outcome: 'notStolen', reason: 'free' });
    }
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('is safe to repeat with the same id', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key, { renewEveryMs: 1000 });
    await age(bed.redis, key, lock.lockId, 10_000);
    const first = await locks.steal(key, { if: 'stale', ttlMs: 1000, lockId: 'thief' });
    const second = await locks.steal(key, { if: 'stale', ttlMs: 1000, lockId: 'thief' });
    if (first.outcome !== 'stolen' || second.outcome !== 'stolen') throw new Error('not stolen');
    expect(second.lock.fencingToken).toBe(first.lock.fencingToken);
  });

  it('takes the stalest permit of a semaphore and leaves the others', async () => {
    const locks = bed.locks();
    const key = newKey();
    const held = [];
    for (const ms of [5000, 20_000, 10_000]) {
      const lock = await take(locks, key, { limit: 3, renewEveryMs: 1000 });
      await age(bed.redis, key, lock.lockId, ms);
      held.push(lock);
    }
    expect((await locks.steal(key, { if: 'stale', ttlMs: 30_000, limit: 3 })).outcome).toBe('stolen');
    const beats = await Promise.all(held.map(async (lock) => (await lock.heartbeat()).outcome));
    expect(beats).toEqual(['alive', 'lost', 'alive']);
  });

  it('is refused where the thief would be one of more holders than it asked for', async () => {
    const locks = bed.locks();
    const key = newKey();
    const held = [await take(locks, key, { limit: 2, renewEveryMs: 1000 }), await take(locks, key, { limit: 2, renewEveryMs: 1000 })];
    for (const lock of held) await age(bed.redis, key, lock.lockId, 10_000);
    expect(await locks.steal(key, { if: 'stale', ttlMs: 30_000, limit: 1 })).toMatchObject({ outcome: 'notStolen', reason: 'otherLimit', holders: [{}, {}] });
    expect(await locks.acquire(key, { ttlMs: 30_000, limit: 1, stealIfStaleMs: 1000 })).toMatchObject({ outcome: 'busy', reason: 'held' });
    for (const lock of held) expect((await lock.heartbeat()).outcome).toBe('alive');
  });

  it('happens within acquire by stealIfStaleMs', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key, { owner: { executionId: 'old' } });
    await age(bed.redis, key, lock.lockId, 5000);
    expect((await locks.acquire(key, { ttlMs: 1000, stealIfStaleMs: 6000 })).outcome).toBe('busy');
    const thief = await take(locks, key, { stealIfStaleMs: 4000 });
    expect(thief.grant.robbed).toMatchObject({ owner: { executionId: 'old' } });
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', reason: 'stolen', by: { fencingToken: thief.fencingToken } });
  });

  it.each([{ if: 'never' }, { if: { fencingToken: 0 } }, { if: { fencingToken: 1.5 } }, { if: 'stale', staleMs: 0 }, { if: null }])(
    'refuses %j',
    async (options) => {
      await expect(bed.locks().steal(newKey(), { ttlMs: 1000, ...options } as never)).rejects.toMatchObject({ name: 'LockOptionError' });
    },
  );
});

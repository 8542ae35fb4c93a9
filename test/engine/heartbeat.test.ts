import { newKey, take, useBed } from './support/bed';
import { chain } from './support/chain';
import { expire } from './support/state';

describe('a heartbeat after the lease ran out', () => {
  const bed = useBed();

  it.each([
    ['the key is gone', false],
    ['losers of a chain keep the key alive', true],
  ])('revives it while nobody entered, when %s', async (_, keepKey) => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    await expire(bed.redis, key, lock.lockId, { keepKey });
    expect((await locks.status(key)).state).toBe('free');

    expect(await lock.heartbeat()).toMatchObject({ outcome: 'alive', revived: true, fencingToken: lock.fencingToken });
    expect(await bed.redis.get(key)).toBe(String(lock.fencingToken));
    expect(await bed.redis.pttl(key)).toBeGreaterThan(29_000);
    expect((await locks.acquire(key, { ttlMs: 1000 })).outcome).toBe('busy');
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'alive', revived: false });
  });

  it('says lost when somebody entered, also when he has gone again', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    await expire(bed.redis, key, lock.lockId);
    const next = await take(locks, key, { owner: { executionId: 'next' } });

    const lost = { reason: 'expired', by: { fencingToken: next.fencingToken, owner: { executionId: 'next' } } };
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', ...lost });
    await next.release();
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', ...lost });
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', ...lost });
    expect(lock.expiresInMs()).toBe(0);
  });

  it('says lost when a chain took the key', async () => {
    const key = newKey();
    const lock = await take(bed.locks(), key);
    await expire(bed.redis, key, lock.lockId);
    expect(await chain(bed.redis).increment(key, 60)).toBe(1);
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'keyOverwritten' });
  });

  it('revives within a semaphore as long as nobody needed its room', async () => {
    const locks = bed.locks();
    const key = newKey();
    const [a, b] = [await take(locks, key, { limit: 2 }), await take(locks, key, { limit: 2 })];
    await expire(bed.redis, key, a.lockId, { keepKey: true });
    expect(await a.heartbeat()).toMatchObject({ outcome: 'alive', revived: true });

    await expire(bed.redis, key, a.lockId, { keepKey: true });
    const c = await take(locks, key, { limit: 2 });
    expect(await a.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'expired', by: { fencingToken: c.fencingToken } });
    expect((await b.heartbeat()).outcome).toBe('alive');
  });
});

describe('a release after the lease ran out', () => {
  const bed = useBed();

  it('says so when nobody entered', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    await expire(bed.redis, key, lock.lockId);
    expect(await lock.release()).toEqual({ outcome: 'released', expiredBefore: true, holdsLeft: 0 });
    expect(await lock.release()).toEqual({ outcome: 'alreadyReleased' });
  });

  it('changes nothing when somebody did', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    await expire(bed.redis, key, lock.lockId);
    const next = await take(locks, key);
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', reason: 'expired', by: { fencingToken: next.fencingToken } });
    expect(await bed.redis.get(key)).toBe(String(next.fencingToken));
    expect((await next.heartbeat()).outcome).toBe('alive');
  });
});

describe('how a lock was lost', () => {
  const bed = useBed();

  it('is remembered of the last sixteen, and never mistaken for a release of older ones', async () => {
    const locks = bed.locks();
    const key = newKey();
    const held = [];
    for (let i = 0; i < 20; i++) {
      const lock = await take(locks, key);
      held.push(lock);
      await expire(bed.redis, key, lock.lockId);
    }
    const last = await take(locks, key);
    const reasons = await Promise.all(held.map(async (lock) => ((await lock.release()) as { reason?: string }).reason));
    expect(reasons).toEqual([...Array(4).fill('unknown'), ...Array(16).fill('expired')]);
    expect((await last.release()).outcome).toBe('released');
    expect(await last.release()).toEqual({ outcome: 'alreadyReleased' });
  });

  it('belongs to the lease, not to its id: the same id may take the lock again', async () => {
    const locks = bed.locks();
    const key = newKey();
    const first = await take(locks, key, { lockId: 'same' });
    await bed.redis.del(key);
    await (await take(locks, key)).release();
    const second = await take(locks, key, { lockId: 'same' });
    expect(second.grant.again).toBe(false);
    expect((await second.release()).outcome).toBe('released');
    expect(await second.release()).toEqual({ outcome: 'alreadyReleased' });
    expect(await first.release()).toMatchObject({ outcome: 'notHeld', reason: 'keyDeleted' });
  });
});

import type { Lock } from '../../engine';
import { newKey, take, useBed } from './support/bed';
import { commandsDuring } from './support/commands';
import { expire } from './support/state';

describe('acquire, heartbeat, release, status', () => {
  const bed = useBed();

  it('takes a free lock, renews it and gives it back', async () => {
    const locks = bed.locks();
    const key = newKey();

    const lock = await take(locks, key, { ttlMs: 20_000 });
    expect(lock.key).toBe(key);
    expect(lock.ttlMs).toBe(20_000);
    expect(lock.expiresInMs()).toBeGreaterThan(19_000);
    expect(lock.expiresInMs()).toBeLessThanOrEqual(20_000);
    expect(lock.grant).toMatchObject({ again: false, queue: 0, waitedMs: 0, ttlMs: 20_000 });

    const beat = await lock.heartbeat(25_000);
    expect(beat).toMatchObject({ outcome: 'alive', revived: false, ttlMs: 25_000, fencingToken: lock.fencingToken });
    expect(beat).not.toHaveProperty('keyTtlShortened');
    expect(await bed.redis.pttl(key)).toBeGreaterThan(24_500);
    expect(await bed.redis.pttl(key)).toBeLessThanOrEqual(25_000);

    expect(await lock.release()).toEqual({ outcome: 'released', expiredBefore: false, holdsLeft: 0 });
    expect(await bed.redis.exists(key)).toBe(0);
    expect(lock.expiresInMs()).toBe(0);
  });

  it('tells a loser who is in the way, and not his lock id', async () => {
    const key = newKey();
    const lock = await take(bed.locks(), key, { owner: { executionId: '4711', workflowName: 'Ingest', note: 'für "A"\n' } });

    const busy = await bed.locks().acquire(key, { ttlMs: 10_000 });

    expect(busy).toMatchObject({ outcome: 'busy', reason: 'held', queue: 0 });
    if (busy.outcome !== 'busy') return;
    expect(busy.holders).toHaveLength(1);
    expect(busy.holders[0]).toMatchObject({
      fencingToken: lock.fencingToken,
      ttlMs: 30_000,
      limit: 1,
      owner: { executionId: '4711', workflowName: 'Ingest', note: 'für "A"\n' },
    });
    expect(JSON.stringify(busy)).not.toContain(lock.lockId);
  });

  it('F44, M10: sets the TTL in the same step, within 50 ms of what was asked', async () => {
    const key = newKey();
    await take(bed.locks(), key, { ttlMs: 1000 });
    const left = await bed.redis.pttl(key);
    expect(left).toBeGreaterThan(950);
    expect(left).toBeLessThanOrEqual(1000);
  });

  it('has exactly one winner among 200 at once, over several processes', async () => {
    const key = newKey();
    const engines = [bed.locks(), bed.locks(), bed.locks(), bed.locks()];
    const results = await Promise.all(Array.from({ length: 200 }, (_, i) => engines[i % 4]!.acquire(key, { ttlMs: 30_000 })));
    const count = (outcome: string) => results.filter((result) => result.outcome === outcome).length;
    expect([count('acquired'), count('busy')]).toEqual([1, 199]);
  });

  it('lets in as many as the limit says', async () => {
    const key = newKey();
    const locks = bed.locks();
    const results = await Promise.all(Array.from({ length: 10 }, () => locks.acquire(key, { ttlMs: 30_000, limit: 3 })));
    const won = results.flatMap((result) => (result.outcome === 'acquired' ? [result.lock] : []));
    expect(won).toHaveLength(3);

    await won[0]!.release();
    expect((await locks.acquire(key, { ttlMs: 30_000, limit: 3 })).outcome).toBe('acquired');
    expect((await locks.acquire(key, { ttlMs: 30_000, limit: 3 })).outcome).toBe('busy');
    expect(await bed.redis.get(key)).toMatch(/^\d{16}$/);
  });

  it('needs one round trip to acquire and one to release, and no command that a mutex does not need', async () => {
    const locks = bed.locks();
    const key = newKey();
    // The first use of a connection sends the scripts' texts.
    const first = await take(locks, key);
    await first.heartbeat();
    await first.release();

    let lock!: Lock;
    const acquiring = await commandsDuring(bed.redis, async () => void (lock = await take(locks, key)));
    const renewing = await commandsDuring(bed.redis, () => lock.heartbeat());
    const releasing = await commandsDuring(bed.redis, () => lock.release());

    const both = { evalsha: 1, time: 1, hgetall: 1 };
    expect(acquiring).toEqual({ ...both, hlen: 1, set: 1, hset: 1, pexpire: 1 });
    expect(renewing).toEqual({ ...both, get: 1, pttl: 1, pexpireat: 1, hset: 1, pexpire: 1 });
    expect(releasing).toEqual({ ...both, get: 1, hlen: 1, del: 1, hdel: 1 });
  });

  it('sends what is asked at the same moment in one write', async () => {
    const locks = bed.locks();
    await (await take(locks, newKey())).release();
    const keys = Array.from({ length: 20 }, () => newKey());
    const won = await Promise.all(keys.map((key) => take(locks, key)));
    expect(new Set(won.map(({ fencingToken }) => fencingToken)).size).toBe(20);
    await Promise.all(won.map((lock) => lock.release()));
  });

  it('says what is there', async () => {
    const locks = bed.locks();
    const key = newKey();
    expect(await locks.status(key)).toEqual({ key, state: 'free', holders: [], holderCount: 0, queue: 0, fencingToken: 0 });

    const lock = await take(locks, key, { ttlMs: 120_000, renewEveryMs: 40_000 });
    expect(await locks.status(key)).toMatchObject({
      key,
      state: 'held',
      queue: 0,
      fencingToken: lock.fencingToken,
      holders: [{ fencingToken: lock.fencingToken, renewEveryMs: 40_000, ttlMs: 120_000 }],
    });

    await lock.release();
    expect(await locks.status(key)).toMatchObject({ state: 'free', holders: [], fencingToken: lock.fencingToken });
  });

  it('calls a lease expiring when less than a quarter of it is left, and less than half a minute', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key, { ttlMs: 200_000 });
    const stateWith = async (inMs: number) => {
      await expire(bed.redis, key, lock.lockId, { inMs });
      return (await locks.status(key)).state;
    };
    expect([await stateWith(31_000), await stateWith(29_000), await stateWith(0)]).toEqual(['held', 'expiring', 'free']);
  });
});

describe('repeated calls', () => {
  const bed = useBed();

  it('F53: answers an acquire with the same id by the same fencing token', async () => {
    const locks = bed.locks();
    const key = newKey();
    const first = await take(locks, key, { lockId: 'mine' });
    const second = await take(bed.locks(), key, { lockId: 'mine' });
    expect(second.fencingToken).toBe(first.fencingToken);
    expect([first.grant.again, second.grant.again]).toEqual([false, true]);
    expect((await locks.status(key)).holders).toHaveLength(1);
  });

  it('F40: renews by a repeated acquire, and never shortens', async () => {
    const locks = bed.locks();
    const key = newKey();
    await take(locks, key, { lockId: 'mine', ttlMs: 10_000 });
    expect((await take(locks, key, { lockId: 'mine', ttlMs: 40_000 })).ttlMs).toBe(40_000);
    expect((await take(locks, key, { lockId: 'mine', ttlMs: 5000 })).ttlMs).toBe(40_000);
    expect(await bed.redis.pttl(key)).toBeGreaterThan(39_000);
  });

  it('F50: says already released to a second release, whatever happened since', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    expect((await lock.release()).outcome).toBe('released');
    expect(await lock.release()).toEqual({ outcome: 'alreadyReleased' });

    const next = await take(locks, key);
    expect(await lock.release()).toEqual({ outcome: 'alreadyReleased' });
    expect((await next.heartbeat()).outcome).toBe('alive');

    await next.release();
    expect(await lock.release()).toEqual({ outcome: 'alreadyReleased' });
    expect(await next.release()).toEqual({ outcome: 'alreadyReleased' });
  });

  it('F48, M12, M13: lets only the id of the holder renew or release', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key, { owner: { executionId: '1' } });
    const thief = locks.resume(key, { lockId: 'somebody-else' });

    expect(await thief.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'notHeld' });
    expect(await thief.release()).toMatchObject({
      outcome: 'notHeld',
      reason: 'notHolder',
      by: { fencingToken: lock.fencingToken, owner: { executionId: '1' } },
    });
    expect((await lock.heartbeat()).outcome).toBe('alive');
    expect(await lock.release()).toMatchObject({ outcome: 'released' });
  });

  it('resumes a lease from what was kept of it', async () => {
    const key = newKey();
    const { lockId, fencingToken } = await take(bed.locks(), key);
    const lock = bed.locks().resume(key, { lockId, fencingToken });
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'alive', ttlMs: 30_000, fencingToken });
    expect((await lock.release()).outcome).toBe('released');
  });
});

import { newKey, take, useBed, won } from './support/bed';
import { expire } from './support/state';

describe('a newer attempt of the same execution', () => {
  const bed = useBed();
  const owner = (attempt: string) => ({ instanceId: 'i', executionId: '4711', note: attempt });

  it('goes on with the lock under a new token; the older one changes nothing any more and is told', async () => {
    const [older, newer] = [bed.locks(), bed.locks()];
    const key = newKey();
    const lock = await take(older, key, { owner: owner('first'), renewEveryMs: 10_000, hold: 'A' });
    const result = await newer.inherit(key, lock, { ttlMs: 60_000, owner: owner('second'), renewEveryMs: 20_000 });
    if (result.outcome === 'lost') throw new Error(result.reason);

    const { fencingToken } = result.lock;
    expect(fencingToken).toBeGreaterThan(lock.fencingToken);
    expect(result.lock.lockId).toBe(lock.lockId);
    expect(await bed.redis.get(key)).toBe(String(fencingToken));
    expect(await bed.redis.pttl(key)).toBeGreaterThan(59_000);
    expect(await newer.status(key)).toMatchObject({
      fencingToken,
      holders: [{ fencingToken, ttlMs: 60_000, renewEveryMs: 20_000, owner: owner('second') }],
    });

    const takenOver = { reason: 'takenOver', by: { fencingToken, owner: owner('second') } };
    expect(await lock.heartbeat(1000)).toMatchObject({ outcome: 'lost', ...takenOver });
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', ...takenOver });
    expect(await bed.redis.pttl(key)).toBeGreaterThan(59_000);
    expect((await result.lock.heartbeat()).outcome).toBe('alive');
    expect((await result.lock.release()).outcome).toBe('released');
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('resumed twice: the last one has it', async () => {
    const key = newKey();
    const lock = await take(bed.locks(), key, { owner: owner('first') });
    const attempts = [bed.locks(), bed.locks()];
    const results = [];
    for (const locks of attempts) results.push(await locks.inherit(key, lock, { ttlMs: 30_000, owner: owner('again') }));
    const [second, third] = results.map((result) => (result.outcome === 'inherited' ? result.lock : undefined));
    expect(third!.fencingToken).toBeGreaterThan(second!.fencingToken);
    expect(await second!.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'takenOver' });
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'takenOver' });
    expect((await third!.heartbeat()).outcome).toBe('alive');
  });

  it('goes on with a lease that ran out while nobody entered, and not with one that is somebody else’s', async () => {
    const locks = bed.locks();
    const [left, taken] = [newKey(), newKey()];
    const [one, two] = [await take(locks, left), await take(locks, taken)];
    await expire(bed.redis, left, one.lockId);
    await expire(bed.redis, taken, two.lockId);
    const next = await take(locks, taken);

    expect((await locks.inherit(left, one, { ttlMs: 1000 })).outcome).toBe('inherited');
    expect(await locks.inherit(taken, two, { ttlMs: 1000 })).toMatchObject({
      outcome: 'lost', reason: 'expired', by: { fencingToken: next.fencingToken },
    });
    expect((await next.heartbeat()).outcome).toBe('alive');
    expect(await locks.inherit(newKey(), one, { ttlMs: 1000 })).toMatchObject({ outcome: 'lost' });
  });

  it('keeps what others gave to the lease: its holds, and its limit', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key, { limit: 2, hold: 'A' });
    await locks.resume(key, { lockId: lock.lockId, hold: 'B' }).heartbeat();
    const result = await locks.inherit(key, lock, { ttlMs: 30_000, hold: 'A' });
    if (result.outcome === 'lost') throw new Error(result.reason);

    const other = await take(locks, key, { limit: 2 });
    expect((await locks.acquire(key, { ttlMs: 1000, limit: 2 })).outcome).toBe('busy');
    expect(await result.lock.release()).toMatchObject({ outcome: 'released', holdsLeft: 1 });
    expect((await other.release()).outcome).toBe('released');
  });

  it('has the lock in its own index, and not in that of the execution it repeats', async () => {
    const locks = bed.locks();
    const key = newKey();
    const before = { instanceId: 'i', executionId: '1' };
    const after = { instanceId: 'i', executionId: '2' };
    const lock = await take(locks, key, { owner: before });
    const result = await locks.inherit(key, { ...lock, lockId: lock.lockId, owner: before }, { ttlMs: 30_000, owner: after });
    expect(result.outcome).toBe('inherited');
    expect(await locks.heldBy(before)).toEqual([]);
    expect(await locks.heldBy(after)).toMatchObject([{ key, lockId: lock.lockId }]);
    expect(await locks.releaseExecution(before)).toEqual([]);
    expect((await locks.status(key)).state).toBe('held');
  });

  it('passes nobody in line by, and hands over like any holder', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    const waiting = bed.locks().acquire(key, { ttlMs: 30_000, waitMs: 20_000 });
    while ((await locks.status(key)).queue === 0);
    const result = await locks.inherit(key, lock, { ttlMs: 30_000 });
    if (result.outcome === 'lost') throw new Error(result.reason);
    expect((await locks.status(key)).queue).toBe(1);
    await result.lock.release();
    expect((await won(waiting)).fencingToken).toBeGreaterThan(result.lock.fencingToken);
  });
});

describe('what a heartbeat announces', () => {
  const bed = useBed();

  it('can be changed: an interval, none, and the one before stays where nothing is said', async () => {
    const locks = bed.locks();
    const key = newKey();
    const announced = async () => (await locks.status(key)).holders[0] as { renewEveryMs: number };
    const lock = await take(locks, key, { renewEveryMs: 1000 });
    await lock.heartbeat(60_000, { renewEveryMs: 20_000 });
    expect((await announced()).renewEveryMs).toBe(20_000);
    await lock.heartbeat();
    expect((await announced()).renewEveryMs).toBe(20_000);
    await lock.heartbeat(undefined, { renewEveryMs: 0 });
    expect((await announced()).renewEveryMs).toBe(0);
    // The same behind the plain path: with another holder beside it.
    const shared = newKey();
    const one = await take(locks, shared, { limit: 2, renewEveryMs: 1000 });
    await take(locks, shared, { limit: 2 });
    await one.heartbeat(undefined, { renewEveryMs: 7000 });
    const { holders } = await locks.status(shared);
    expect(holders.map((holder) => 'renewEveryMs' in holder && holder.renewEveryMs).sort()).toEqual([0, 7000]);
  });
});

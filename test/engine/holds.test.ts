import { newKey, take, useBed } from './support/bed';
import { expire } from './support/state';

describe('several takers of one lease', () => {
  const bed = useBed();

  it('are counted by name, and the last one frees the lock', async () => {
    const locks = bed.locks();
    const key = newKey();
    const outer = await take(locks, key, { lockId: 'x', hold: 'Outer' });
    const inner = await take(locks, key, { lockId: 'x', hold: 'Inner, the "second"' });
    await take(locks, key, { lockId: 'x', hold: 'Inner, the "second"' });
    expect(inner.fencingToken).toBe(outer.fencingToken);

    expect(await inner.release()).toEqual({ outcome: 'released', expiredBefore: false, holdsLeft: 1 });
    expect(await inner.release()).toMatchObject({ outcome: 'released', holdsLeft: 1 });
    expect((await locks.acquire(key, { ttlMs: 1000 })).outcome).toBe('busy');
    expect(await outer.release()).toMatchObject({ outcome: 'released', holdsLeft: 0 });
    expect(await bed.redis.exists(key)).toBe(0);
    expect(await inner.release()).toEqual({ outcome: 'alreadyReleased' });
  });

  it('may also be added by the heartbeat of a resumed lock', async () => {
    const locks = bed.locks();
    const key = newKey();
    const first = await take(locks, key, { hold: 'A' });
    const second = locks.resume(key, { lockId: first.lockId, fencingToken: first.fencingToken, hold: '-' });
    await second.heartbeat();
    expect(await first.release()).toMatchObject({ holdsLeft: 1 });
    expect(await second.release()).toMatchObject({ holdsLeft: 0 });
  });

  it('are all given back by a release that names none', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key, { lockId: 'y', hold: 'A' });
    await take(locks, key, { lockId: 'y', hold: 'B' });
    expect(await locks.resume(key, { lockId: 'y', fencingToken: lock.fencingToken }).release()).toMatchObject({ holdsLeft: 0 });
    expect(await bed.redis.exists(key)).toBe(0);
  });
});

describe('everything that an execution holds', () => {
  const bed = useBed();
  const execution = (executionId: string) => ({ instanceId: 'instance', executionId });

  it('is known, and freed at once, without touching what others hold', async () => {
    const locks = bed.locks();
    const keys = [newKey(), newKey(), newKey()];
    for (const key of keys) await take(locks, key, { owner: execution('1') });
    const other = await take(locks, newKey(), { owner: execution('2') });

    const held = await bed.locks().heldBy(execution('1'));
    expect(held.map(({ key }) => key).sort()).toEqual([...keys].sort());

    const freed = await bed.locks().releaseExecution(execution('1'));
    expect(freed.map(({ outcome }) => outcome)).toEqual(['released', 'released', 'released']);
    expect(await bed.redis.exists(...keys)).toBe(0);
    expect((await other.heartbeat()).outcome).toBe('alive');
    expect(await locks.heldBy(execution('1'))).toEqual([]);
    expect(await locks.releaseExecution(execution('1'))).toEqual([]);
  });

  it('is told lost when it is alive again after that', async () => {
    const locks = bed.locks();
    const [key, entered] = [newKey(), newKey()];
    const [lock, other] = [await take(locks, key, { owner: execution('8') }), await take(locks, entered, { owner: execution('8') })];
    await bed.locks().releaseExecution(execution('8'));
    await take(locks, entered);

    for (const each of [lock, other]) {
      expect(await each.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'freed' });
      expect(await each.release()).toMatchObject({ outcome: 'notHeld', reason: 'freed' });
    }
    expect(await bed.redis.exists(key)).toBe(0);
    expect((await locks.status(entered)).state).toBe('held');
  });

  it('is no longer what it has released', async () => {
    const locks = bed.locks();
    const lock = await take(locks, newKey(), { owner: execution('3') });
    expect(await locks.heldBy(execution('3'))).toHaveLength(1);
    await lock.release();
    expect(await locks.heldBy(execution('3'))).toEqual([]);
  });

  it('F63: is checked again entry by entry: what another one has by now stays his', async () => {
    const locks = bed.locks();
    const [lost, kept] = [newKey(), newKey()];
    const lock = await take(locks, lost, { owner: execution('4') });
    await take(locks, kept, { owner: execution('4') });
    await expire(bed.redis, lost, lock.lockId);
    const next = await take(locks, lost, { owner: execution('5') });

    const outcomes = await locks.releaseExecution(execution('4'));
    expect(Object.fromEntries(outcomes.map(({ key, outcome }) => [key, outcome]))).toEqual({ [lost]: 'notHeld', [kept]: 'released' });
    expect((await next.heartbeat()).outcome).toBe('alive');
    expect(await locks.heldBy(execution('4'))).toEqual([]);
  });

  it('is tried to the end, though one of its keys is no lock any more', async () => {
    const locks = bed.locks();
    const [broken, fine] = [newKey(), newKey()];
    bed.own.add(broken);
    await take(locks, broken, { owner: execution('6') });
    await take(locks, fine, { owner: execution('6') });
    await bed.redis.del(broken);
    await bed.redis.rpush(broken, 'x');
    await expect(locks.releaseExecution(execution('6'))).rejects.toMatchObject({ code: 'wrongType' });
    expect(await bed.redis.exists(fine)).toBe(0);
  });

  it('takes the execution out of the lines it waits in', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    const wait = locks.acquire(key, { ttlMs: 30_000, waitMs: 400, owner: execution('7') });
    while ((await locks.status(key)).queue === 0);
    await bed.locks().releaseExecution(execution('7'));
    expect((await locks.status(key)).queue).toBe(0);
    expect((await wait).outcome).toBe('timedOut');
    await lock.release();
  });

  it('F63: loses out of it what a heartbeat or release finds lost', async () => {
    const locks = bed.locks();
    const owner = { instanceId: 'i', executionId: 'keeps-others' };
    const lost = [await take(locks, newKey(), { owner }), await take(locks, newKey(), { owner })];
    const kept = await take(locks, newKey(), { owner, ttlMs: 60_000 });
    for (const lock of lost) await bed.redis.del(lock.key);
    expect((await lost[0]!.heartbeat()).outcome).toBe('lost');
    expect((await lost[1]!.release()).outcome).toBe('notHeld');
    expect(await locks.heldBy(owner)).toEqual([{ key: kept.key, lockId: kept.lockId }]);
  });

  it('F63: is remembered as long as its longest lease', async () => {
    const locks = bed.locks();
    const index = 'rl:execution:instance:8';
    const long = await take(locks, newKey(), { owner: execution('8'), ttlMs: 60_000 });
    await take(locks, newKey(), { owner: execution('8'), ttlMs: 1000 });
    expect(await bed.redis.pttl(index)).toBeGreaterThan(59_000);
    await long.heartbeat(90_000);
    expect(await bed.redis.pttl(index)).toBeGreaterThan(89_000);
    await long.heartbeat(5000);
    expect(await bed.redis.pttl(index)).toBeGreaterThan(89_000);
  });

  it('needs both ids: an execution id alone is the same on every instance', async () => {
    const locks = bed.locks();
    await take(locks, newKey(), { owner: { executionId: '9' } });
    expect(await locks.heldBy({ instanceId: '', executionId: '9' })).toEqual([]);
  });
});

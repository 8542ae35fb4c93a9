import type { AcquireOptions, Locks } from '../../engine';
import { newKey, take, useBed } from './support/bed';
import { inLine } from './support/state';
import { until } from './support/until';

const KEEP = { ttlMs: 30_000, waitMs: 0, keepPlaceMs: 20_000 };

describe('a place in line that is kept', () => {
  const bed = useBed();
  /** Joins the line, and goes. */
  const keepPlace = async (locks: Locks, key: string, options: Partial<AcquireOptions> = {}) => {
    const result = await locks.acquire(key, { ...KEEP, ...options });
    if (result.outcome !== 'timedOut' || result.lockId === undefined) throw new Error(JSON.stringify(result));
    return result.lockId;
  };

  it('is resumed before those who came later, also from another process', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key);
    const lockId = await keepPlace(locks, key);
    const later = locks.acquire(key, { ttlMs: 30_000, waitMs: 20_000 });
    await inLine(bed.redis, key, 2).catch(() => {});
    const back = bed.locks().acquire(key, { ttlMs: 30_000, waitMs: 20_000, lockId });
    await until(async () => (await bed.redis.hvals(`{${key}}:rl:wait`)).every((asks) => asks.startsWith('rl:')));

    await holder.release();
    const first = await back;
    if (first.outcome !== 'acquired') throw new Error(first.outcome);
    expect(first.lock.lockId).toBe(lockId);
    expect((await locks.status(key)).queue).toBe(1);
    await first.lock.release();
    expect((await later).outcome).toBe('acquired');
  });

  it('is passed by others meanwhile, who wait or do not', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key);
    const lockId = await keepPlace(locks, key);
    const waiting = locks.acquire(key, { ttlMs: 30_000, waitMs: 20_000 });
    await until(async () => (await locks.status(key)).queue === 2);
    await holder.release();
    const passed = await waiting;
    if (passed.outcome !== 'acquired') throw new Error(passed.outcome);
    await passed.lock.release();
    await (await take(locks, key)).release();

    // Who comes back to a free lock has it at once.
    const back = await take(locks, key, { lockId, waitMs: 0 });
    expect(back.grant).toMatchObject({ again: false });
    expect((await locks.status(key)).queue).toBe(0);
  });

  it('is kept again by another time-out, with the first ticket', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key);
    const lockId = await keepPlace(locks, key);
    const ticket = await bed.redis.zscore(`{${key}}:rl:line`, lockId);
    await keepPlace(locks, key);
    expect(await keepPlace(locks, key, { lockId, waitMs: 20 })).toBe(lockId);
    expect(await bed.redis.zscore(`{${key}}:rl:line`, lockId)).toBe(ticket);
    await holder.release();
  });

  it('is gone when its time is over', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key);
    const lockId = await keepPlace(locks, key, { keepPlaceMs: 30 });
    const other = await keepPlace(locks, key);
    await new Promise((resolve) => setTimeout(resolve, 40));
    await holder.release();
    await until(async () => (await take(locks, key)).release().then(() => bed.redis.zscore(`{${key}}:rl:line`, lockId)).then((at) => at === null));
    expect(await bed.redis.zscore(`{${key}}:rl:line`, other)).not.toBeNull();
  });

  it('is a new one, at the end, for who comes back when its time is over', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key);
    const lockId = await keepPlace(locks, key, { keepPlaceMs: 30 });
    const other = await keepPlace(locks, key);
    await new Promise((resolve) => setTimeout(resolve, 40));
    // Nothing was done about the line since.
    await keepPlace(locks, key, { lockId });
    expect(await bed.redis.zrange(`{${key}}:rl:line`, '0', '-1')).toEqual([other, lockId]);
    await holder.release();
  });

  it('is not left by one who was stopped', async () => {
    const locks = bed.locks();
    const key = newKey();
    await take(locks, key);
    const stop = new AbortController();
    const waiting = locks.acquire(key, { ...KEEP, waitMs: 20_000, signal: stop.signal });
    await until(async () => (await locks.status(key)).queue === 1);
    stop.abort(new Error('stopped'));
    await expect(waiting).rejects.toThrow('stopped');
    expect((await locks.status(key)).queue).toBe(0);
  });

  it('is freed with everything that its execution has', async () => {
    const locks = bed.locks();
    const key = newKey();
    await take(locks, key);
    const owner = { instanceId: 'i', executionId: '7' };
    await keepPlace(locks, key, { owner });
    await locks.releaseExecution(owner);
    expect((await locks.status(key)).queue).toBe(0);
  });

  it('needs a wait', async () => {
    await expect(bed.locks().acquire(newKey(), { ttlMs: 1000, keepPlaceMs: 1000 })).rejects.toThrow('keepPlaceMs: keeps a place in line, so it needs waitMs too');
  });

  it('is no matter for one who times out without keeping it', async () => {
    const locks = bed.locks();
    const key = newKey();
    await take(locks, key);
    expect(await locks.acquire(key, { ttlMs: 1000, waitMs: 0 })).not.toHaveProperty('lockId');
    expect((await locks.status(key)).queue).toBe(0);
  });
});

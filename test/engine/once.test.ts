import type { AcquireOptions, Lock, Locks } from '../../engine';
import { commandsDuring } from './support/commands';
import { newKey, take, useBed, wait } from './support/bed';
import { inLine } from './support/state';
import { until } from './support/until';

type Once = Awaited<ReturnType<Locks['acquireOnce']>>;

const TTL = { ttlMs: 30_000 };

describe('what is done once', () => {
  const bed = useBed();

  const once = async (locks: Locks, key: string, options: Partial<AcquireOptions> = {}): Promise<Lock> => {
    const result = await locks.acquireOnce(key, { ...TTL, ...options });
    if (result.outcome !== 'acquired') throw new Error(`not acquired: ${JSON.stringify(result)}`);
    return result.lock;
  };
  const waitOnce = (locks: Locks, key: string, options: Partial<AcquireOptions> = {}): Promise<Once> => {
    const result = locks.acquireOnce(key, { ...TTL, waitMs: 20_000, ...options });
    result.catch(() => {});
    return result;
  };
  const queueIs = (locks: Locks, key: string, length: number) => until(async () => (await locks.status(key)).queue === length);

  it('is mine to do, then being done, then done before, with when, by whom and the result', async () => {
    const locks = bed.locks();
    const key = newKey();
    const owner = { instanceId: 'i', executionId: '7', nodeName: 'Acquire Once' };
    const lock = await once(locks, key, { owner });
    expect(await bed.locks().acquireOnce(key, TTL)).toMatchObject({ outcome: 'busy', reason: 'held' });
    const before = Date.now();
    expect(await lock.release({ doneForMs: 60_000, result: { id: 'c-1', text: 'two\nlines' } })).toEqual({ outcome: 'released', expiredBefore: false, holdsLeft: 0 });
    const again = await bed.locks().acquireOnce(key, TTL);
    expect(again).toEqual({
      outcome: 'doneBefore',
      done: { at: expect.any(Number), until: expect.any(Number), fencingToken: lock.fencingToken, owner, result: { id: 'c-1', text: 'two\nlines' } },
    });
    if (again.outcome !== 'doneBefore') throw new Error(again.outcome);
    expect(again.done.until - again.done.at).toBe(60_000);
    expect(Math.abs(again.done.at - before)).toBeLessThan(1000);
    expect(await locks.status(key)).toMatchObject({ state: 'doneMark', holders: [], holderCount: 0, done: { owner, result: { id: 'c-1' } } });
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('is not done by a release that does not say so', async () => {
    const locks = bed.locks();
    const key = newKey();
    await (await once(locks, key)).release();
    await (await once(locks, key)).release();
    expect(await locks.status(key)).toMatchObject({ state: 'free' });
  });

  it('is not known to a holder that lost the lock', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await once(locks, key);
    await bed.redis.del(key);
    expect(await lock.release({ doneForMs: 60_000 })).toMatchObject({ outcome: 'notHeld', reason: 'keyDeleted' });
    await once(locks, key);
  });

  it('is remembered for its time, also beyond that of the fencing token, and then forgotten', async () => {
    const locks = bed.locks({ fencingRetentionMs: 1 });
    const key = newKey();
    await (await once(locks, key)).release({ doneForMs: 300 });
    expect((await locks.acquireOnce(key, TTL)).outcome).toBe('doneBefore');
    await until(async () => (await bed.redis.exists(`{${key}}:rl:lock`)) === 0);
    await (await once(locks, key)).release({ doneForMs: 50_000 });
    expect(await bed.redis.pttl(`{${key}}:rl:lock`)).toBeGreaterThan(49_000);
  });

  it('is forgotten when its time is over while others hold the lock', async () => {
    const locks = bed.locks();
    const key = newKey();
    await (await once(locks, key)).release({ doneForMs: 30 });
    const holder = await take(locks, key);
    await until(async () => (await locks.status(key)).done === undefined);
    expect((await locks.acquireOnce(key, TTL)).outcome).toBe('busy');
    await holder.heartbeat();
    expect(await bed.redis.hexists(`{${key}}:rl:lock`, 'done')).toBe(0);
  });

  it('is no matter for those who acquire as always, and stays as they come and go', async () => {
    const locks = bed.locks();
    const key = newKey();
    await (await once(locks, key)).release({ doneForMs: 60_000 });
    const plain = await take(locks, key);
    expect((await locks.acquireOnce(key, TTL)).outcome).toBe('doneBefore');
    await plain.heartbeat();
    await plain.release();
    expect((await locks.acquireOnce(key, TTL)).outcome).toBe('doneBefore');
    expect(await bed.redis.pttl(`{${key}}:rl:lock`)).toBeGreaterThan(59_000);
  });

  it('sends those who wait for it out of the line at once, in few steps, and serves the others', async () => {
    const [locks, others] = [bed.locks(), bed.locks()];
    const key = newKey();
    const holder = await once(locks, key);
    const waiting = [...Array.from({ length: 40 }, () => waitOnce(locks, key)), ...Array.from({ length: 40 }, () => waitOnce(others, key))];
    await queueIs(locks, key, 80);
    const plain = wait(others, key);
    await inLine(bed.redis, key, 81);
    let results: Once[] = [];
    const commands = await commandsDuring(bed.redis, async () => {
      await holder.release({ doneForMs: 60_000, result: 1 });
      results = await Promise.all(waiting);
    });
    expect(results.map((result) => result.outcome === 'doneBefore' && result.done.result)).toEqual(Array(80).fill(1));
    expect((await plain).outcome).toBe('acquired');
    expect((await locks.status(key)).queue).toBe(0);
    // One release, and one script for each process; the one that was let in claims.
    expect((commands.evalsha ?? 0) + (commands.eval ?? 0)).toBeLessThanOrEqual(6);
  });

  it('lets the next one try when it was not done', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await once(locks, key);
    const waiting = waitOnce(locks, key);
    await queueIs(locks, key, 1);
    await holder.release();
    expect((await waiting).outcome).toBe('acquired');
  });

  it('is told at the time-out too, to one whom no message reached', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await once(locks, key);
    const waiting = waitOnce(locks, key, { waitMs: 400 });
    await queueIs(locks, key, 1);
    // Its channel is gone: nobody hears.
    const [id] = await bed.redis.zrange(`{${key}}:rl:line`, '0', '-1');
    const asks = String(await bed.redis.hget(`{${key}}:rl:wait`, id));
    await bed.redis.hset(`{${key}}:rl:wait`, id, asks.replace(/^\S+/, 'rl:wake:nobody'));
    await holder.release({ doneForMs: 60_000 });
    expect((await waiting).outcome).toBe('doneBefore');
  });

  it.each([
    ['a time', { doneForMs: 0 }, 'doneForMs: must be a number of milliseconds from 1'],
    ['a time', { doneForMs: Number.NaN }, 'doneForMs: must be'],
    ['a result that is too large', { doneForMs: 1000, result: 'x'.repeat(4095) }, 'result: must not be larger than 4096 bytes as JSON'],
    ['a result that JSON can not hold', { doneForMs: 1000, result: () => 1 }, 'result: must be a value that JSON can hold'],
    ['a result that JSON can not hold', { doneForMs: 1000, result: 10n }, 'result: must be a value that JSON can hold'],
  ])('refuses %s before anything changes: %j', async (_, done, problem) => {
    const lock = await once(bed.locks(), newKey());
    await expect(lock.release(done)).rejects.toThrow(problem);
    expect((await lock.heartbeat()).outcome).toBe('alive');
  });
});

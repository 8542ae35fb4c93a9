import type { Locks } from '../../engine';
import { commandsDuring } from './support/commands';
import { newKey, take, useBed, wait, won } from './support/bed';
import { age } from './support/state';
import { until } from './support/until';

const TTL = { ttlMs: 30_000 };
type Several = Awaited<ReturnType<Locks['acquireAll']>>;

describe('several keys at once', () => {
  const bed = useBed();
  const all = async (result: Several | Promise<Several>) => {
    const settled = await result;
    if (settled.outcome !== 'acquired') throw new Error(JSON.stringify(settled));
    return settled.locks;
  };
  const waitAll = (locks: Locks, keys: string[], options = {}) => {
    const result = locks.acquireAll(keys, { ...TTL, waitMs: 20_000, ...options });
    result.catch(() => {});
    return result;
  };
  const exist = (keys: string[]) => bed.redis.exists(...keys);

  it('are all taken in one script, in the order of their bytes, duplicates once', async () => {
    const locks = bed.locks();
    const keys = ['ä', 'b', 'Z', 'b', 'a'].map((name) => `list:${name}`);
    await all(locks.acquireAll(['warm'], TTL));
    let taken: Awaited<ReturnType<typeof all>> = [];
    const commands = await commandsDuring(bed.redis, async () => (taken = await all(locks.acquireAll(keys, TTL))));
    expect(commands.evalsha).toBe(1);
    expect(taken.map(({ key }) => key)).toEqual(['list:Z', 'list:a', 'list:b', 'list:ä']);
    expect(new Set(taken.map(({ lockId }) => lockId)).size).toBe(4);
    for (const lock of taken) {
      expect(await locks.acquire(lock.key, TTL)).toMatchObject({ outcome: 'busy', reason: 'held' });
      expect(await lock.heartbeat()).toMatchObject({ outcome: 'alive', fencingToken: lock.fencingToken });
      expect(await lock.release()).toMatchObject({ outcome: 'released' });
    }
    expect(await exist(keys)).toBe(0);
  });

  it('are none taken where one is held, and it is said which and by whom; nothing was busy meanwhile', async () => {
    const locks = bed.locks();
    const keys = [newKey(), newKey(), newKey()].sort();
    const holder = await take(bed.locks(), keys[1]!, { owner: { executionId: '7' } });
    expect(await locks.acquireAll(keys, TTL)).toMatchObject({ outcome: 'busy', key: keys[1], reason: 'held', holders: [{ owner: { executionId: '7' } }] });
    expect(await exist([keys[0]!, keys[2]!])).toBe(0);
    await holder.release();
    expect(await all(locks.acquireAll(keys, TTL))).toHaveLength(3);
  });

  it('are none taken where one is no lock', async () => {
    const locks = bed.locks();
    const keys = [newKey(), newKey()].sort();
    await bed.redis.lpush(keys[1]!, 'x');
    bed.own.add(keys[1]!);
    await expect(locks.acquireAll(keys, TTL)).rejects.toMatchObject({ code: 'wrongType' });
    expect(await exist([keys[0]!])).toBe(0);
  });

  it('are none taken where a companion of one is of a wrong type: the error in the middle undoes the first', async () => {
    const locks = bed.locks();
    const keys = [newKey(), newKey()].sort();
    await bed.redis.set(`{${keys[1]!}}:rl:wait`, 'x');
    bed.own.add(`{${keys[1]!}}:rl:wait`);
    await expect(locks.acquireAll(keys, TTL)).rejects.toMatchObject({ code: 'refused' });
    expect(await exist([keys[0]!])).toBe(0);
    expect((await locks.status(keys[0]!)).holders).toEqual([]);
  });

  it('are waited for in order, those that it has already are kept alive, and all have their full TTL at the end', async () => {
    const locks = bed.locks();
    const keys = [newKey(), newKey(), newKey()].sort();
    const holder = await take(locks, keys[1]!);
    const waiting = waitAll(locks, [...keys].reverse(), { ttlMs: 600 });
    await until(async () => (await locks.status(keys[1]!)).queue === 1);
    // The first is its own by now, the last is free.
    expect(await exist([keys[0]!])).toBe(1);
    expect(await exist([keys[2]!])).toBe(0);
    const began = Date.now();
    await until(async () => {
      expect(await exist([keys[0]!])).toBe(1);
      return Date.now() - began > 1300;
    });
    await holder.release();
    const taken = await all(waiting);
    for (const lock of taken) expect(lock.expiresInMs()).toBeGreaterThan(400);
  });

  it('are given back when the time is over, under one deadline for all', async () => {
    const locks = bed.locks();
    const keys = [newKey(), newKey(), newKey()].sort();
    const holders = [await take(locks, keys[1]!), await take(locks, keys[2]!)];
    const started = performance.now();
    const result = await locks.acquireAll(keys, { ...TTL, waitMs: 300 });
    expect(result).toMatchObject({ outcome: 'timedOut', key: keys[1], holders: [{ fencingToken: holders[0]!.fencingToken }] });
    expect(performance.now() - started).toBeLessThan(2000);
    if (result.outcome === 'timedOut') expect(result.waitedMs).toBeGreaterThanOrEqual(290);
    expect(await exist([keys[0]!])).toBe(0);
    expect((await locks.status(keys[1]!)).queue).toBe(0);
  });

  it('do not deadlock, whatever the order in which their callers name them', async () => {
    const engines = [bed.locks(), bed.locks(), bed.locks()];
    const keys = [newKey(), newKey(), newKey()];
    const orders = [[0, 1, 2], [2, 1, 0], [1, 2], [2, 0], [0, 1], [1, 0, 2]];
    const inside = new Set<number>();
    let sections = 0;
    await Promise.all(
      Array.from({ length: 36 }, async (_, i) => {
        const wanted = orders[i % orders.length]!;
        const taken = await all(waitAll(engines[i % 3]!, wanted.map((n) => keys[n]!)));
        for (const n of wanted) {
          expect(inside.has(n)).toBe(false);
          inside.add(n);
        }
        await new Promise((resolve) => setImmediate(resolve));
        for (const n of wanted) inside.delete(n);
        sections += 1;
        await Promise.all(taken.map((lock) => lock.release()));
      }),
    );
    expect(sections).toBe(36);
    expect(await exist(keys)).toBe(0);
  }, 20_000);

  it('begin anew when one that was taken already is lost while another is waited for', async () => {
    const locks = bed.locks();
    const keys = [newKey(), newKey()].sort();
    const holder = await take(locks, keys[1]!);
    const waiting = waitAll(locks, keys, { ttlMs: 300 });
    await until(async () => (await locks.status(keys[1]!)).queue === 1);
    await bed.redis.del(keys[0]!);
    const other = await take(bed.locks(), keys[0]!);
    // It is told at its next renewal, and stands in line for the first key again.
    await until(async () => (await locks.status(keys[0]!)).queue === 1);
    expect((await locks.status(keys[1]!)).queue).toBe(0);
    await holder.release();
    await other.release();
    expect((await all(waiting)).map(({ key }) => key)).toEqual(keys);
  });

  it('are left by one who is stopped', async () => {
    const locks = bed.locks();
    const keys = [newKey(), newKey()].sort();
    await take(locks, keys[1]!);
    const stop = new AbortController();
    const waiting = waitAll(locks, keys, { signal: stop.signal });
    await until(async () => (await locks.status(keys[1]!)).queue === 1);
    stop.abort(new Error('stopped'));
    await expect(waiting).rejects.toThrow('stopped');
    expect(await exist([keys[0]!])).toBe(0);
    expect((await locks.status(keys[1]!)).queue).toBe(0);
  });

  it('are all in the index of their execution, and freed with it', async () => {
    const locks = bed.locks();
    const keys = [newKey(), newKey()].sort();
    const owner = { instanceId: 'several', executionId: '7' };
    await all(locks.acquireAll(keys, { ...TTL, owner }));
    expect((await locks.heldBy(owner)).map(({ key }) => key).sort()).toEqual(keys);
    await locks.releaseExecution(owner);
    expect(await exist(keys)).toBe(0);
  });

  it('let the waiters of each in when they are released', async () => {
    const locks = bed.locks();
    const keys = [newKey(), newKey()].sort();
    const taken = await all(locks.acquireAll(keys, TTL));
    const waiting = keys.map((key) => wait(locks, key));
    await until(async () => (await Promise.all(keys.map((key) => locks.status(key)))).every(({ queue }) => queue === 1));
    for (const lock of taken) await lock.release();
    for (const each of waiting) await won(each);
  });

  describe('stolen', () => {
    it('are all taken over from a holder that is gone, those that are free along with it', async () => {
      const locks = bed.locks();
      const keys = [newKey(), newKey(), newKey()].sort();
      const gone = await all(locks.acquireAll(keys.slice(0, 2), TTL));
      for (const lock of gone) await age(bed.redis, lock.key, lock.lockId, 10_000);
      const result = await locks.stealAll(keys, { if: 'stale', staleMs: 5000, ...TTL });
      expect(result.outcome).toBe('stolen');
      if (result.outcome !== 'stolen') return;
      expect(result.locks.map(({ key, grant }) => [key, grant.robbed !== undefined])).toEqual([[keys[0], true], [keys[1], true], [keys[2], false]]);
      for (const lock of gone) expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'stolen' });
      for (const lock of result.locks) expect((await lock.heartbeat()).outcome).toBe('alive');
    });

    it('are none taken where one is not in that state', async () => {
      const locks = bed.locks();
      const keys = [newKey(), newKey()].sort();
      const stale = await take(locks, keys[0]!);
      await age(bed.redis, keys[0]!, stale.lockId, 10_000);
      const alive = await take(locks, keys[1]!);
      expect(await locks.stealAll(keys, { if: 'stale', staleMs: 5000, ...TTL })).toMatchObject({ outcome: 'notStolen', key: keys[1], reason: 'notStale' });
      expect([(await stale.heartbeat()).outcome, (await alive.heartbeat()).outcome]).toEqual(['alive', 'alive']);
    });

    it('have no fencing token in common', async () => {
      await expect(bed.locks().stealAll([newKey()], { if: { fencingToken: 1 }, ...TTL })).rejects.toThrow('if: can be a fencing token for one key only');
    });
  });

  it.each([
    [[], 'key: must be a list with one name at least'],
    [Array.from({ length: 101 }, (_, i) => `k${i}`), 'key: must not be a list of more than 100 names, but has 101'],
    [['ok', ''], 'key: must be a text that is not empty'],
  ])('refuses a list (%#)', async (keys, problem) => {
    await expect(bed.locks().acquireAll(keys, TTL)).rejects.toThrow(problem);
  });

  it('of a hundred keys are one step too', async () => {
    const locks = bed.locks();
    const keys = Array.from({ length: 100 }, () => newKey());
    const taken = await all(locks.acquireAll(keys, TTL));
    expect(taken).toHaveLength(100);
    await take(bed.locks(), newKey());
    await Promise.all(taken.map((lock) => lock.release()));
    expect(await exist(keys)).toBe(0);
  });
});

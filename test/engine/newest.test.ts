import type { AcquireOptions, Locks } from '../../engine';
import { Transitions } from '../../engine/transitions';
import { ask } from '../../engine/validate';
import { newKey, take, useBed, won } from './support/bed';
import { setTimeout as delay } from 'node:timers/promises';
import { inLine, line } from './support/state';
import { until } from './support/until';

type Acquired = Awaited<ReturnType<Locks['acquire']>>;

describe('waiting: only the newest', () => {
  const bed = useBed();
  const wait = (locks: Locks, key: string, options: Partial<AcquireOptions> = {}): Promise<Acquired> => {
    const result = locks.acquire(key, { ttlMs: 30_000, waitMs: 20_000, waiting: 'newest', ...options });
    result.catch(() => {});
    return result;
  };
  const place = (key: string, id: string) => bed.redis.zscore(`{${key}}:rl:line`, id);
  const stands = (key: string, id: string) => until(async () => (await place(key, id)) !== null);
  const newestIs = (key: string, id: string) => until(async () => (await bed.redis.hget(`{${key}}:rl:lock`, 'newest')) === id);

  it('after a burst, exactly the one that runs and the newest do the work; the rest are told at once, and by whom', async () => {
    const engines = [bed.locks(), bed.locks(), bed.locks()];
    const key = newKey();
    const holder = await take(engines[0]!, key);
    const burst: Array<Promise<Acquired>> = [];
    for (let n = 1; n <= 50; n++) {
      const lockId = `burst-${n}`;
      burst.push(wait(engines[n % 3]!, key, { lockId, owner: { executionId: String(n), instanceId: 'i' } }));
      await newestIs(key, lockId);
    }
    const old = await Promise.all(burst.slice(0, 49));
    expect(old.map(({ outcome }) => outcome)).toEqual(Array(49).fill('busy'));
    for (const result of old) expect(result).toMatchObject({ reason: 'superseded', newer: { instanceId: 'i' }, holders: [{ fencingToken: holder.fencingToken }] });
    await until(async () => (await engines[0]!.status(key)).queue === 1);
    await holder.release();
    expect((await won(burst[49]!)).lockId).toBe('burst-50');
    expect((await engines[0]!.status(key)).queue).toBe(0);
    await (await won(burst[49]!)).release();
    // Nothing of it stays, so the plain paths are plain again.
    await (await take(engines[0]!, key)).release();
    expect(await bed.redis.hexists(`{${key}}:rl:lock`, 'newest')).toBe(0);
    expect(await bed.redis.exists(`{${key}}:rl:wait`, `{${key}}:rl:line`)).toBe(0);
  });

  it('puts out nobody who waits in turn, and keeps its own place behind them', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key);
    const turn = wait(locks, key, { waiting: 'turn', lockId: 'turn' });
    await stands(key, 'turn');
    const first = wait(locks, key, { lockId: 'first' });
    await stands(key, 'first');
    const newest = wait(locks, key, { lockId: 'newest' });
    expect(await first).toMatchObject({ outcome: 'busy', reason: 'superseded' });
    await holder.release();
    const served = await won(turn);
    expect((await locks.status(key)).queue).toBe(1);
    await served.release();
    expect((await won(newest)).lockId).toBe('newest');
  });

  it('enters a free lock at once', async () => {
    const locks = bed.locks();
    const key = newKey();
    expect((await won(wait(locks, key))).grant.waitedMs).toBeLessThan(1000);
  });

  it('puts out a place that is kept: who comes back is told', async () => {
    const locks = bed.locks();
    const key = newKey();
    await take(locks, key);
    const gone = await wait(locks, key, { lockId: 'gone', waitMs: 0, keepPlaceMs: 20_000 });
    expect(gone).toMatchObject({ outcome: 'timedOut', lockId: 'gone' });
    const newest = wait(locks, key, { lockId: 'newest' });
    await stands(key, 'newest');
    expect(await wait(locks, key, { lockId: 'gone' })).toMatchObject({ outcome: 'busy', reason: 'superseded' });
    expect(await place(key, 'gone')).toBeNull();
    expect(await place(key, 'newest')).not.toBeNull();
    void newest;
  });

  it('is decided by the order of arrival, not by that of coming back, when Redis lost its data', async () => {
    const [a, b] = [bed.locks(), bed.locks()];
    const key = newKey();
    await take(a, key);
    const older = wait(a, key, { lockId: 'older' });
    await inLine(bed.redis, key, 1);
    // The message to the older one gets lost, and then the line.
    const asks = String(await bed.redis.hget(`{${key}}:rl:wait`, 'older'));
    await bed.redis.hset(`{${key}}:rl:wait`, 'older', asks.replace(/^\S+/, 'rl:wake:nobody'));
    const newer = wait(b, key, { lockId: 'newer' });
    await newestIs(key, 'newer');
    await inLine(bed.redis, key, 2);
    await bed.redis.multi().del(line(key), `{${key}}:rl:wait`).hdel(`{${key}}:rl:lock`, 'newest').exec();
    await bed.redis.call('CLIENT', 'KILL', 'TYPE', 'pubsub');
    expect(await older).toMatchObject({ outcome: 'busy', reason: 'superseded' });
    await newestIs(key, 'newer');
    expect(await bed.redis.zrange(line(key), '0', '-1')).toEqual(['newer']);
    void newer;
  });

  describe('of processes that can not be heard', () => {
    /** A process that joins the line, and does nothing more. */
    const ghost = () => new Transitions({ redis: bed.client() }, { commandTimeoutMs: 5000, fencingRetentionMs: 60_000, maxWaiters: 100 });
    const join = (process: Transitions, key: string, lockId: string, arrived = 0) => {
      const caller = { ...ask({ ttlMs: 30_000 }), keys: process.keys(key), lockId, index: undefined, policy: ['n'] };
      return process.acquire(caller, { waitMs: 20_000, channel: 'rl:wake:nobody', arrived }, -1);
    };

    it('the older one is out whichever asks first, when all have to ask anew', async () => {
      const key = newKey();
      await take(bed.locks(), key);
      const away = ghost();
      const now = Date.now() * 1000;
      expect(await join(away, key, 'newer', now)).toMatchObject({ outcome: 'waiting', ticket: now });
      expect(await join(away, key, 'older', now - 1)).toMatchObject({ outcome: 'busy', reason: 'superseded' });
      expect(await bed.redis.zrange(line(key), '0', '-1')).toEqual(['newer']);
    });

    it('one that was put out and does not leave is no hindrance', async () => {
      const locks = bed.locks();
      const key = newKey();
      const holder = await take(locks, key);
      const away = ghost();
      await join(away, key, 'away');
      const newest = wait(locks, key, { lockId: 'newest' });
      await inLine(bed.redis, key, 2);
      expect(String(await bed.redis.hget(`{${key}}:rl:wait`, 'away'))).toMatch(/^\^ /);
      await holder.release();
      expect((await won(newest)).lockId).toBe('newest');
      expect(await join(away, key, 'away')).toMatchObject({ outcome: 'busy', reason: 'superseded' });
      expect(await place(key, 'away')).toBeNull();
    });
  });

  it('is told also to one who was cut off meanwhile', async () => {
    const locks = bed.locks();
    const key = newKey();
    await take(locks, key);
    const old = wait(locks, key, { lockId: 'old' });
    await stands(key, 'old');
    await until(async () => !String(await bed.redis.hget(`{${key}}:rl:wait`, 'old')).startsWith('poll:'));
    await bed.redis.call('CLIENT', 'KILL', 'TYPE', 'pubsub');
    const newest = wait(bed.locks(), key, { lockId: 'newest' });
    expect(await old).toMatchObject({ outcome: 'busy', reason: 'superseded' });
    void newest;
  });

  describe('with a settle time', () => {
    it('enters only when nothing newer has come for that long, also where the lock is free', async () => {
      const locks = bed.locks();
      const key = newKey();
      // It listens already: nothing is found by asking now and then.
      const before = newKey();
      const first = await take(locks, before);
      const listening = wait(locks, before);
      await inLine(bed.redis, before, 1);
      await first.release();
      await won(listening);
      const started = performance.now();
      const burst: Array<Promise<Acquired>> = [];
      for (let n = 1; n <= 5; n++) {
        burst.push(wait(locks, key, { lockId: `n-${n}`, settleMs: 250 }));
        await newestIs(key, `n-${n}`);
        expect(await bed.redis.exists(key)).toBe(0);
        expect(await bed.redis.pttl(`{${key}}:rl:lock`)).toBeGreaterThan(0);
      }
      const last = performance.now();
      const results = await Promise.all(burst);
      expect(results.map(({ outcome }) => outcome)).toEqual(['busy', 'busy', 'busy', 'busy', 'acquired']);
      expect(performance.now() - last).toBeGreaterThan(240);
      expect(performance.now() - started).toBeLessThan(3000);
    });

    it('enters at the latest so long after the first of a burst that does not end', async () => {
      const locks = bed.locks();
      const key = newKey();
      const started = performance.now();
      let n = 0;
      let served: Acquired | undefined;
      const all: Array<Promise<Acquired>> = [];
      while (!served && performance.now() - started < 5000) {
        n += 1;
        const asked = wait(locks, key, { lockId: `n-${n}`, settleMs: 400, settleAtMostMs: 600 });
        all.push(asked);
        asked.then((result) => result.outcome === 'acquired' && (served ??= result), () => {});
        await delay(30);
      }
      expect(served).toBeDefined();
      const took = performance.now() - started;
      expect(took).toBeGreaterThan(590);
      expect(took).toBeLessThan(2500);
    });

    it('waits for the holder after that, like any other', async () => {
      const locks = bed.locks();
      const key = newKey();
      const holder = await take(locks, key);
      const waiting = wait(locks, key, { lockId: 'settling', settleMs: 60 });
      await stands(key, 'settling');
      await delay(150);
      expect(await place(key, 'settling')).not.toBeNull();
      await holder.release();
      expect((await won(waiting)).lockId).toBe('settling');
    });

    it('lets others pass meanwhile', async () => {
      const locks = bed.locks();
      const key = newKey();
      const waiting = wait(locks, key, { lockId: 'settling', settleMs: 400 });
      await stands(key, 'settling');
      const other = await take(locks, key);
      const turn = wait(locks, key, { waiting: 'turn', lockId: 'turn' });
      await stands(key, 'turn');
      await other.release();
      await (await won(turn)).release();
      expect((await won(waiting)).lockId).toBe('settling');
    });
  });

  it.each([
    [{ waiting: 'last' as 'newest' }, 'waiting: must be \'turn\' or \'newest\', not "last"'],
    [{ waiting: 'newest' as const, waitMs: undefined }, "waiting: 'newest' is about those who wait, so it needs waitMs too"],
    [{ waiting: 'turn' as const, settleMs: 100 }, "settleMs: needs waiting: 'newest'"],
    [{ settleMs: 0 }, 'settleMs: must be a number of milliseconds from 1'],
    [{ settleAtMostMs: 100 }, 'settleAtMostMs: needs settleMs'],
    [{ settleMs: 100, settleAtMostMs: 50 }, 'settleAtMostMs: must be a number of milliseconds from 100'],
  ])('refuses %j', async (options, problem) => {
    await expect(wait(bed.locks(), newKey(), options)).rejects.toThrow(problem);
  });
});

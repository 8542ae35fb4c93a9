import { setTimeout as delay } from 'node:timers/promises';
import { newKey, take, useBed, useProxy } from '../support/bed';
import { startChild } from '../support/child';
import { commandsDuring } from '../support/commands';
import { Gate, once, type Fate } from '../support/proxy';
import { until } from '../support/until';

/** Renewals that come late, fail, cross with a release, or should have ended. */
describe('a renewal', () => {
  const bed = useBed();
  const proxy = useProxy(bed);
  const isFree = (key: string) => until(async () => (await bed.redis.exists(key)) === 0);
  const lastHeartbeat = async (key: string) => {
    const [holder] = (await bed.locks().status(key)).holders;
    return holder && 'lastHeartbeatAt' in holder ? holder.lastHeartbeatAt : 0;
  };
  const beatsAgain = async (key: string, since?: number) => {
    const before = since ?? (await lastHeartbeat(key));
    return until(async () => (await lastHeartbeat(key)) > before, 10_000);
  };

  it('F28: after the end of the lease says that it ran out in between, while nobody entered', async () => {
    const key = newKey();
    const lock = await take(bed.locks(), key, { ttlMs: 50 });
    await isFree(key);
    expect(await lock.heartbeat(30_000)).toMatchObject({ outcome: 'alive', revived: true, fencingToken: lock.fencingToken });
    expect((await bed.locks().acquire(key, { ttlMs: 1000 })).outcome).toBe('busy');
  });

  it('F28: after the end of the lease takes nothing back that another one had meanwhile, though it is free again', async () => {
    const key = newKey();
    const lock = await take(bed.locks(), key, { ttlMs: 50 });
    await isFree(key);
    const next = await take(bed.locks(), key, { owner: { executionId: 'next' } });
    const lost = { outcome: 'lost', reason: 'expired', by: { fencingToken: next.fencingToken, owner: { executionId: 'next' } } };
    expect(await lock.heartbeat()).toMatchObject(lost);
    await next.release();
    expect(await lock.heartbeat()).toMatchObject(lost);
    expect(await bed.redis.exists(key)).toBe(0);
    expect((await take(bed.locks(), key)).fencingToken).toBeGreaterThan(next.fencingToken);
  });

  it.each([
    ['is still under way', (gate: Gate): Fate => ({ after: gate.opened })],
    ['was executed and its answer lost', (): Fate => 'loseReply'],
  ])('F29, F65: that %s at the end of the work is no loss, and does not bring the lock back', async (_, fateOf) => {
    const key = newKey();
    const locks = bed.locks({}, { url: proxy.url });
    const [renewing, going] = [new Gate(), new Gate()];
    let seen!: AbortSignal;
    const result = await locks.using(key, { ttlMs: 3000 }, async (lock, signal) => {
      seen = signal;
      const judge = once(key, fateOf(going));
      proxy.judge = (command) => {
        const fate = judge(command);
        if (fate !== 'pass') renewing.open();
        return fate;
      };
      await renewing.opened;
      // When the work is over.
      setImmediate(() => setImmediate(going.open));
      return lock.fencingToken;
    });
    expect(result).toMatchObject({ outcome: 'done', release: { outcome: 'released', expiredBefore: false } });
    expect(seen.aborted).toBe(false);
    expect(await bed.redis.exists(key)).toBe(0);
    // Every command that was on its way has come.
    await locks.status(key);
    expect(await bed.locks().status(key)).toMatchObject({ state: 'free' });
    expect(seen.aborted).toBe(false);
  }, 15_000);

  it('F29, F65: and a release that are called at once are both answered, and the lock is free', async () => {
    const locks = bed.locks();
    const key = newKey();
    for (let i = 0; i < 50; i++) {
      const lock = await take(locks, key);
      const [beat, release] = await Promise.all([lock.heartbeat(), lock.release()]);
      expect([beat.outcome, release.outcome]).toEqual(['alive', 'released']);
      expect(await bed.redis.exists(key)).toBe(0);
    }
  });

  it('F30: is not left behind, at whatever moment the call for the lock was interrupted', async () => {
    const locks = bed.locks();
    await (await take(locks, newKey())).release();
    const keys = Array.from({ length: 80 }, () => newKey());
    const outcomes = { done: 0, interrupted: 0 };
    for (const [i, key] of keys.entries()) {
      const holder = i % 2 ? await take(bed.locks(), key) : undefined;
      const stop = new AbortController();
      const using = locks.using(key, { ttlMs: 300, waitMs: 20_000, signal: stop.signal }, () => new Promise(setImmediate)).then(
        () => outcomes.done++,
        (error: Error) => (expect(error.message).toBe('stop'), outcomes.interrupted++),
      );
      const releasing = holder?.release();
      for (let turn = 0; turn < i / 2; turn++) await new Promise(setImmediate);
      stop.abort(new Error('stop'));
      await Promise.all([using, releasing]);
    }
    // Both must have happened, or nothing has been tested.
    expect(Math.min(outcomes.done, outcomes.interrupted)).toBeGreaterThan(0);
    await until(async () => (await bed.redis.exists(...keys)) === 0);
    await locks.status(newKey());
    // Ten times as long as a renewal would take to come.
    expect(await commandsDuring(bed.redis, () => delay(1000))).toEqual({});
  }, 30_000);

  it('F32: that failed ends neither the next ones nor those of the next lock', async () => {
    const key = newKey();
    const [limitMs, ttlMs] = [400, 2400];
    const locks = bed.locks({ commandTimeoutMs: limitMs }, { url: proxy.url });
    await locks.using(key, { ttlMs }, async (lock) => {
      proxy.refusing = true;
      proxy.cut();
      await expect(lock.heartbeat()).rejects.toMatchObject({ code: 'unavailable' });
      // One of its own fails too.
      await delay(ttlMs / 3 + limitMs);
      proxy.refusing = false;
      // Beyond the lease that it had: the call above may still have come through.
      await beatsAgain(key, (await lastHeartbeat(key)) + ttlMs);
    });
    expect(await bed.redis.exists(key)).toBe(0);
    const result = await locks.using(key, { ttlMs }, async (lock, signal) => {
      const acquired = await lastHeartbeat(key);
      // Beyond the lease that it was granted.
      await beatsAgain(key, acquired + ttlMs);
      return signal.aborted;
    });
    expect(result).toMatchObject({ outcome: 'done', value: false, release: { outcome: 'released' } });
  }, 20_000);

  it.each(['is done', 'fails'])('F33: ends with the work that %s', async (how) => {
    const key = newKey();
    const locks = bed.locks();
    const work = locks.using(key, { ttlMs: 300 }, async () => {
      await beatsAgain(key);
      if (how === 'fails') throw new Error('failed');
    });
    expect(await work.then(({ outcome }) => outcome, (error: Error) => error.message)).toBe(how === 'fails' ? 'failed' : 'done');
    expect(await bed.redis.exists(key)).toBe(0);
    expect(await commandsDuring(bed.redis, () => delay(1000))).toEqual({});
  });

  it('F33: ends with the process, and the lock with the lease', async () => {
    const key = newKey();
    const child = await startChild(bed.server.url);
    const ttlMs = 1500;
    expect((await child.use(key, { ttlMs })).outcome).toBe('acquired');
    await beatsAgain(key);
    child.signal('SIGKILL');
    const lock = await take(bed.locks(), key, { waitMs: 20_000 });
    expect(lock.grant.waitedMs).toBeLessThan(ttlMs + 5000);
  }, 25_000);
});

import { once } from 'node:events';
import fc from 'fast-check';
import type { Locks } from '../../../engine';
import { newKey, take, useBed, useProxy, wait, won } from '../support/bed';
import { startChild } from '../support/child';
import { commandsDuring } from '../support/commands';
import { Gate, once as first } from '../support/proxy';
import { expire, inLine } from '../support/state';
import { until } from '../support/until';

/** Renewing, giving back and losing a lock. */
describe('a lease', () => {
  const bed = useBed();
  const proxy = useProxy(bed);

  it('F37: that was lost is given back in one round trip, without an exception', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lost = await take(locks, key);
    await expire(bed.redis, key, lost.lockId);
    const next = await take(locks, key);
    let answer: unknown;
    const commands = await commandsDuring(bed.redis, async () => (answer = await lost.release()));
    expect(answer).toMatchObject({ outcome: 'notHeld', reason: 'expired', by: { fencingToken: next.fencingToken } });
    expect((commands.eval ?? 0) + (commands.evalsha ?? 0)).toBe(1);
    await expect(
      locks.using(newKey(), { ttlMs: 1000 }, async (lock) => {
        await bed.redis.del(lock.key);
        throw new Error('of the work itself');
      }),
    ).rejects.toThrow('of the work itself');
  });

  it('F38: is renewed twice by the same handle, which stays right', async () => {
    const lock = await take(bed.locks(), newKey(), { ttlMs: 1000 });
    expect(await lock.heartbeat(20_000)).toMatchObject({ outcome: 'alive', ttlMs: 20_000 });
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'alive', ttlMs: 20_000 });
    expect(lock.ttlMs).toBe(20_000);
    expect(lock.expiresInMs()).toBeGreaterThan(15_000);
    expect((await lock.release()).outcome).toBe('released');
  });

  it('F39: that was won by waiting is renewed like any other', async () => {
    const key = newKey();
    const [locks, other] = [bed.locks(), bed.locks()];
    const holder = await take(other, key);
    let beats = 0;
    const work = locks.using(key, { ttlMs: 300, waitMs: 10_000 }, async (lock, signal) => {
      const first = (await locks.status(key)).holders[0] as { lastHeartbeatAt: number };
      await until(async () => {
        const [now] = (await locks.status(key)).holders as Array<{ lastHeartbeatAt: number }>;
        if (now && now.lastHeartbeatAt > first.lastHeartbeatAt) beats += 1;
        return beats >= 3;
      });
      return [signal.aborted, lock.expiresInMs() > 0];
    });
    await inLine(bed.redis, key, 1);
    await holder.release();
    expect(await work).toMatchObject({ outcome: 'done', value: [false, true], release: { outcome: 'released' } });
  });

  it('F41: is refused, or has at least the time that was asked for', async () => {
    const locks = bed.locks();
    await fc.assert(
      fc.asyncProperty(fc.oneof(fc.double({ min: -5, max: 50_000 }), fc.constantFrom(0, -1, NaN, Infinity, 0.5, 1e15, 2 ** 31)), async (ttlMs) => {
        const key = newKey();
        const result = await locks.acquire(key, { ttlMs }).catch((error: Error) => error.name);
        if (result === 'LockOptionError') {
          expect(await bed.redis.exists(key)).toBe(0);
          return;
        }
        const left = await bed.redis.pttl(key);
        expect(left).toBeGreaterThan(Math.max(0, ttlMs - 1000));
        expect(left).toBeLessThanOrEqual(Math.ceil(ttlMs));
      }),
      { numRuns: 100, examples: [[10], [10.5], [999.999]] },
    );
  });

  it('F45, M6: is the same for a machine whose clock is wrong', async () => {
    const key = newKey();
    const [ahead, behind] = [await startChild(bed.server.url, 3_600_000), await startChild(bed.server.url, -3_600_000)];
    for (const [first, second] of [[ahead, behind], [behind, ahead]] as const) {
      expect((await first.acquire('lock', key, { ttlMs: 30_000 })).outcome).toBe('acquired');
      expect((await second.acquire('other', key, { ttlMs: 30_000 })).outcome).toBe('busy');
      expect((await first.heartbeat('lock')).outcome).toBe('alive');
      const entering = second.acquire('other', key, { ttlMs: 30_000, waitMs: 20_000 });
      await inLine(bed.redis, key, 1);
      expect((await first.release('lock')).outcome).toBe('released');
      expect((await entering).outcome).toBe('acquired');
      expect((await second.release('other')).outcome).toBe('released');
    }
  }, 20_000);

  it('F47: is had at once from a free lock by one who does not wait, however slow Redis is', async () => {
    const locks = bed.locks({}, { url: proxy.url });
    proxy.judge = () => ({ delayMs: 300 });
    expect((await locks.acquire(newKey(), { ttlMs: 30_000 })).outcome).toBe('acquired');
    expect((await locks.acquire(newKey(), { ttlMs: 30_000, waitMs: 0 })).outcome).toBe('acquired');
  }, 20_000);

  it('F54: counts from the grant, and the first heartbeat comes in time, where the grant took long', async () => {
    const key = newKey();
    const locks = bed.locks();
    const holder = await take(bed.locks(), key);
    const waiting = wait(locks, key, { ttlMs: 400 });
    await inLine(bed.redis, key, 1);
    // Longer than the lease.
    await new Promise((resolve) => setTimeout(resolve, 600));
    await holder.release();
    const lock = await won(waiting);
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'alive', revived: false });
  });

  /** What comes first: the work is told, or has company. */
  const endOf = (signal: AbortSignal, other: Promise<unknown>) =>
    Promise.race([once(signal, 'abort').then(() => 'told to stop'), other.then(() => 'another one entered')]);
  const lastHeartbeat = async (locks: Locks, key: string): Promise<number> => {
    const [holder] = (await locks.status(key)).holders;
    return holder && 'lastHeartbeatAt' in holder ? holder.lastHeartbeatAt : 0;
  };

  it('F54: is renewed before its end, also when its grant took long to be told', async () => {
    const key = newKey();
    const [locks, eyes] = [bed.locks({}, { url: proxy.url }), bed.locks()];
    await (await take(locks, newKey())).release();
    const ttlMs = 4500;
    const told = new Gate();
    proxy.judge = first(key, { answerAfter: told.opened });
    const other = until(async () => (await bed.redis.exists(key)) === 1).then(() => wait(eyes, key));
    const work = locks.using(key, { ttlMs }, async (lock, signal) => {
      const renewed = until(async () => (await lastHeartbeat(eyes, key)) > lock.grant.expiresAt - ttlMs, 10_000).then(() => 'renewed');
      renewed.catch(() => {});
      return Promise.race([renewed, endOf(signal, other)]);
    });
    await inLine(bed.redis, key, 1);
    // Most of the lease is over when its holder learns of it.
    await until(async () => (await bed.redis.pttl(key)) < ttlMs / 4);
    told.open();
    expect(await work).toMatchObject({ outcome: 'done', value: 'renewed', release: { outcome: 'released', expiredBefore: false } });
    await won(other);
  }, 25_000);

  it('F54, F70: is known to be over before another one enters, where renewals get no answer', async () => {
    const key = newKey();
    const locks = bed.locks({}, { url: proxy.url });
    const ttlMs = 3000;
    const result = await locks.using(key, { ttlMs }, async (lock, signal) => {
      const other = wait(bed.locks(), key);
      // The last renewal with an answer is one between two of those that come by themselves.
      await until(() => lock.expiresInMs() < ttlMs - 500);
      expect((await lock.heartbeat()).outcome).toBe('alive');
      proxy.judge = (command) => (command.includes(key) ? 'swallow' : 'pass');
      const end = await endOf(signal, other);
      proxy.judge = () => 'pass';
      proxy.cut();
      await won(other);
      return end;
    });
    expect(result).toMatchObject({ outcome: 'done', value: 'told to stop', release: { outcome: 'notHeld', reason: 'expired' } });
  }, 25_000);

  it('M9: is not given back by one who does not hold it, also when its key is gone', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key);
    const waiting = wait(bed.locks(), key);
    await inLine(bed.redis, key, 1);
    expect(await locks.resume(key, { lockId: 'a-stranger', fencingToken: holder.fencingToken + 1 }).release()).toMatchObject({ outcome: 'notHeld' });
    await bed.redis.del(key);
    expect(await holder.release()).toMatchObject({ outcome: 'notHeld', reason: 'keyDeleted' });
    await won(waiting);
  });

  it('M11: of half a second is one, and is renewed with less than that left', async () => {
    const lock = await take(bed.locks(), newKey(), { ttlMs: 500 });
    await new Promise((resolve) => setTimeout(resolve, 150));
    expect(await lock.heartbeat(499)).toMatchObject({ outcome: 'alive', ttlMs: 499, revived: false });
    expect(await bed.redis.pttl(lock.key)).toBeGreaterThan(300);
  });
});

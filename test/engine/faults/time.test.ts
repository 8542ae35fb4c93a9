import { setTimeout as delay } from 'node:timers/promises';
import type { Lock } from '../../../engine';
import { newKey, take, useBed, useProxy, wait, won } from '../support/bed';
import { startChild } from '../support/child';
import { Gate, once } from '../support/proxy';
import { inLine } from '../support/state';
import { until } from '../support/until';

/** What a holder believes of its lease, against what Redis knows. */
describe('the time that is left', () => {
  const bed = useBed();
  const proxy = useProxy(bed);

  /** Does nothing, and lets nothing else happen in this process. */
  const block = (ms: number) => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
  /** Redis is asked first: time that passes until the lock is asked can't make it seem to believe too much. */
  const believes = async (lock: Lock) => {
    const real = await bed.redis.pttl(lock.key);
    return { real, local: lock.expiresInMs() };
  };

  it('F27: counts from the grant, after a wait that was longer than the lease', async () => {
    const key = newKey();
    const ttlMs = 3000;
    const holder = await take(bed.locks(), key);
    const waiting = wait(bed.locks(), key, { ttlMs });
    await inLine(bed.redis, key, 1);
    await delay(ttlMs + 500);
    await holder.release();
    const lock = await won(waiting);
    const { real, local } = await believes(lock);
    expect(lock.grant.waitedMs).toBeGreaterThanOrEqual(ttlMs);
    expect(local).toBeGreaterThan(ttlMs / 2);
    expect(local).toBeLessThanOrEqual(real + 1);
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'alive', revived: false, ttlMs });
  }, 20_000);

  it('F34: is never more than Redis gives, however late the answer comes', async () => {
    const key = newKey();
    const locks = bed.locks({}, { url: proxy.url });
    await (await take(locks, newKey())).release();
    /** A call that Redis has executed half a second before its answer comes. */
    const answeredLate = async <T>(call: () => Promise<T>, ttlMs: number): Promise<T> => {
      const late = new Gate();
      proxy.judge = once(key, { answerAfter: late.opened });
      const result = call();
      await until(async () => (await bed.redis.pttl(key)) > ttlMs - 1000);
      await delay(500);
      late.open();
      return result;
    };
    const lock = await answeredLate(() => take(locks, key, { ttlMs: 20_000 }), 20_000);
    const acquired = await believes(lock);
    expect(acquired.local).toBeLessThanOrEqual(acquired.real + 1);
    expect((await answeredLate(() => lock.heartbeat(25_000), 25_000)).outcome).toBe('alive');
    const renewed = await believes(lock);
    expect(renewed.local).toBeGreaterThan(20_000);
    expect(renewed.local).toBeLessThanOrEqual(renewed.real + 1);
  }, 15_000);

  it('F34: is none for a holder whose process was busy for longer than the lease, before it does anything else', async () => {
    const key = newKey();
    const locks = bed.locks();
    const child = await startChild(bed.server.url);
    const ttlMs = 1500;
    let next: { fencingToken?: number } = {};
    const result = await locks.using(key, { ttlMs }, async (lock, signal) => {
      const entering = child.acquire('next', key, { ttlMs: 30_000, waitMs: 20_000 });
      await inLine(bed.redis, key, 1);
      block(2 * ttlMs);
      expect(lock.expiresInMs()).toBe(0);
      next = await entering;
      await until(() => signal.aborted);
    });
    expect(next).toMatchObject({ outcome: 'acquired' });
    expect(result).toMatchObject({ outcome: 'done', release: { outcome: 'notHeld', reason: 'expired', by: { fencingToken: next.fencingToken } } });
  }, 25_000);
});

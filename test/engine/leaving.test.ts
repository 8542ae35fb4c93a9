import { newKey, take, useBed } from './support/bed';
import { until } from './support/until';

describe('leaving the line', () => {
  const bed = useBed();

  it('happens not at all when the signal is aborted beforehand', async () => {
    const locks = bed.locks();
    const key = newKey();
    const signal = AbortSignal.abort(new Error('stopped'));
    await expect(locks.acquire(key, { ttlMs: 1000, waitMs: 1000, signal })).rejects.toThrow('stopped');
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('happens at once when the signal is aborted during the wait', async () => {
    const locks = bed.locks();
    const key = newKey();
    const lock = await take(locks, key);
    const stop = new AbortController();
    const waiting = locks.acquire(key, { ttlMs: 1000, waitMs: 30_000, signal: stop.signal });
    await until(async () => (await locks.status(key)).queue === 1);

    const started = performance.now();
    stop.abort(new Error('stopped'));
    await expect(waiting).rejects.toThrow('stopped');
    expect(performance.now() - started).toBeLessThan(500);
    expect((await locks.status(key)).queue).toBe(0);
    expect(locks.waiting).toBe(0);
    expect((await lock.heartbeat()).outcome).toBe('alive');
  });

  it('F15: gives back what was granted at the moment of the abort, every time', async () => {
    const locks = bed.locks();
    const key = newKey();
    for (let i = 0; i < 100; i++) {
      const holder = await take(locks, key);
      const stop = new AbortController();
      const waiting = locks.acquire(key, { ttlMs: 30_000, waitMs: 30_000, signal: stop.signal }).then(
        (result) => result,
        () => 'stopped' as const,
      );
      await until(async () => (await locks.status(key)).queue === 1, 2000, 0);
      const release = holder.release();
      if (i % 4 === 1) await null;
      if (i % 4 === 2) await release;
      if (i % 4 === 3) await new Promise((resolve) => setImmediate(resolve));
      stop.abort();
      await release;
      const result = await waiting;
      if (result !== 'stopped' && result.outcome === 'acquired') await result.lock.release();
      expect(await locks.status(key)).toMatchObject({ state: 'free', queue: 0 });
    }
  }, 20_000);

  it('F15, M3: is decided in Redis when time-out and grant cross: nobody is told "timed out" and owns the lock', async () => {
    const [locks, others] = [bed.locks(), bed.locks()];
    const key = newKey();
    const counts = { acquired: 0, timedOut: 0 };
    for (let i = 0; i < 150; i++) {
      const holder = await take(others, key);
      const waitMs = 12 + (i % 5);
      const waiting = locks.acquire(key, { ttlMs: 30_000, waitMs });
      const started = performance.now();
      while (performance.now() - started < waitMs - 4 + (i % 9)) await new Promise((resolve) => setImmediate(resolve));
      await holder.release();
      const result = await waiting;
      const { holders, queue } = await others.status(key);
      expect(queue).toBe(0);
      if (result.outcome === 'acquired') {
        counts.acquired++;
        expect(holders).toMatchObject([{ fencingToken: result.lock.fencingToken }]);
        expect((await result.lock.release()).outcome).toBe('released');
      } else {
        expect(result.outcome).toBe('timedOut');
        counts.timedOut++;
        expect(holders).toEqual([]);
      }
    }
    // Both must have happened, or nothing has been tested.
    expect(counts.acquired).toBeGreaterThan(5);
    expect(counts.timedOut).toBeGreaterThan(5);
  }, 20_000);

  it('takes the lock at the deadline if it was handed over and the message was lost', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(bed.locks(), key);
    const waiting = locks.acquire(key, { ttlMs: 30_000, waitMs: 600 });
    await until(async () => (await locks.status(key)).queue === 1);
    (locks as unknown as { waiters: { handOver(): void } }).waiters.handOver = () => {};
    await holder.release();
    const result = await waiting;
    if (result.outcome !== 'acquired') throw new Error(result.outcome);
    expect(await bed.redis.pttl(key)).toBeGreaterThan(29_000);
    expect((await result.lock.release()).outcome).toBe('released');
  });

  it('passes a grant that is given back on to the next', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(locks, key);
    const stop = new AbortController();
    const first = locks.acquire(key, { ttlMs: 30_000, waitMs: 30_000, signal: stop.signal }).catch(() => 'stopped');
    await until(async () => (await locks.status(key)).queue === 1);
    const second = bed.locks().acquire(key, { ttlMs: 30_000, waitMs: 30_000 });
    await until(async () => (await locks.status(key)).queue === 2);
    const released = holder.release();
    stop.abort();
    await Promise.all([released, first]);
    expect((await second).outcome).toBe('acquired');
  });

  it('happens for all when the locks are closed', async () => {
    const locks = bed.locks();
    const key = newKey();
    await take(bed.locks(), key);
    const waits = Array.from({ length: 20 }, () => locks.acquire(key, { ttlMs: 1000, waitMs: 30_000 }));
    const ended = Promise.allSettled(waits);
    await until(async () => (await bed.locks().status(key)).queue === 20);
    await locks.close();
    for (const result of await ended) expect(result).toMatchObject({ status: 'rejected', reason: { code: 'closed' } });
    expect((await bed.locks().status(key)).queue).toBe(0);
    await expect(locks.acquire(key, { ttlMs: 1000 })).rejects.toMatchObject({ code: 'closed' });
  });
});

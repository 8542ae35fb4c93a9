import { newKey, take, useBed } from './support/bed';
import { Proxy } from './support/proxy';
import { until } from './support/until';

describe('using', () => {
  const bed = useBed();

  it('holds the lock during the work, renews it, and releases it', async () => {
    const locks = bed.locks();
    const key = newKey();
    const result = await locks.using(key, { ttlMs: 150 }, async (lock, signal) => {
      const { lastHeartbeatAt } = (await locks.status(key)).holders[0] as { lastHeartbeatAt: number };
      await until(async () => ((await locks.status(key)).holders[0] as { lastHeartbeatAt: number })?.lastHeartbeatAt > lastHeartbeatAt + 200);
      expect(signal.aborted).toBe(false);
      expect(await locks.status(key)).toMatchObject({ state: expect.stringMatching(/held|expiring/), holders: [{ renewEveryMs: 50 }] });
      return lock.fencingToken;
    });
    expect(result).toEqual({ outcome: 'done', value: expect.any(Number), release: { outcome: 'released', expiredBefore: false, holdsLeft: 0 } });
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('says busy or timed out, and does no work', async () => {
    const locks = bed.locks();
    const key = newKey();
    await take(locks, key);
    const work = jest.fn();
    expect(await locks.using(key, { ttlMs: 1000 }, work)).toMatchObject({ outcome: 'busy' });
    expect(await locks.using(key, { ttlMs: 1000, waitMs: 20 }, work)).toMatchObject({ outcome: 'timedOut' });
    expect(work).not.toHaveBeenCalled();
  });

  it.each([
    ['rejects', () => Promise.reject(new Error('disk full'))],
    [
      'throws',
      () => {
        throw new Error('disk full');
      },
    ],
  ])('keeps the error of work that %s, and releases', async (_, work) => {
    const key = newKey();
    await expect(bed.locks().using(key, { ttlMs: 1000 }, work)).rejects.toThrow('disk full');
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('F70: aborts the signal when the lock is lost, and says how it ended', async () => {
    const locks = bed.locks();
    const key = newKey();
    const result = await locks.using(key, { ttlMs: 300 }, async (lock, signal) => {
      await bed.redis.del(key);
      await until(() => signal.aborted);
      expect(signal.reason.message).toContain('keyDeleted');
      return 'stopped';
    });
    expect(result).toMatchObject({ outcome: 'done', value: 'stopped', release: { outcome: 'notHeld', reason: 'keyDeleted' } });
  });

  it('aborts the signal by the end of the lease when Redis does not answer, and keeps the error of the work', async () => {
    const proxy = await Proxy.start(bed.server);
    const locks = bed.locks({ commandTimeoutMs: 5000 }, { url: proxy.url });
    await (await take(locks, newKey())).release();
    const work = locks.using(newKey(), { ttlMs: 600 }, async (_, signal) => {
      proxy.judge = () => 'swallow';
      const started = performance.now();
      await until(() => signal.aborted);
      expect(performance.now() - started).toBeLessThan(1000);
      proxy.judge = () => 'pass';
      proxy.cut();
      throw new Error('stopped');
    });
    await expect(work).rejects.toThrow('stopped');
    await bed.closeLocks();
    await proxy.stop();
  });

  it('F56: reports a release that failed', async () => {
    const proxy = await Proxy.start(bed.server);
    const locks = bed.locks({ commandTimeoutMs: 300 }, { url: proxy.url });
    const work = locks.using(newKey(), { ttlMs: 60_000 }, async () => {
      proxy.refusing = true;
      proxy.cut();
    });
    await expect(work).rejects.toMatchObject({ code: 'unavailable' });
    await bed.closeLocks();
    await proxy.stop();
  });
});

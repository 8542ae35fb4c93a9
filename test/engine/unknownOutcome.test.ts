import type { Locks } from '../../engine';
import { newKey, take, useBed, useProxy } from './support/bed';
import { once, type Fate } from './support/proxy';
import { age } from './support/state';
import { timed, until } from './support/until';

/** Calls whose answer is lost, late, or never comes. */
describe('an answer that fails to come', () => {
  const bed = useBed();
  const proxy = useProxy(bed);

  /** An engine whose connection and scripts are up, so that the next call is the one that is meant. */
  const warm = async (commandTimeoutMs = 3000): Promise<Locks> => {
    const locks = bed.locks({ commandTimeoutMs }, { url: proxy.url });
    const lock = await take(locks, newKey('warm'));
    await lock.heartbeat();
    await lock.release();
    await locks.steal(lock.key, { if: 'any', ttlMs: 1000 });
    await locks.status(lock.key);
    return locks;
  };

  describe('because it was lost, executed though the command was', () => {
    const lose = () => (proxy.judge = once('evalsha', 'loseReply'));

    it('F19, M1, M2: acquire has the lock, once', async () => {
      const locks = await warm();
      const key = newKey();
      lose();
      const lock = await take(locks, key);
      expect((await locks.status(key)).holders).toMatchObject([{ fencingToken: lock.fencingToken }]);
      expect((await lock.release()).outcome).toBe('released');
    });

    it('heartbeat is alive', async () => {
      const lock = await take(await warm(), newKey());
      lose();
      expect(await lock.heartbeat()).toMatchObject({ outcome: 'alive', fencingToken: lock.fencingToken });
    });

    it('release has freed the lock', async () => {
      const lock = await take(await warm(), newKey());
      lose();
      expect((await lock.release()).outcome).toBe('alreadyReleased');
      expect(await bed.redis.exists(lock.key)).toBe(0);
    });

    it('steal has it, and from the one who was robbed', async () => {
      const locks = await warm();
      const lock = await take(locks, newKey(), { renewEveryMs: 1000 });
      await age(bed.redis, lock.key, lock.lockId, 10_000);
      lose();
      const stolen = await locks.steal(lock.key, { if: 'stale', ttlMs: 30_000 });
      expect(stolen.outcome).toBe('stolen');
      expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'stolen' });
    });

    it('status is what it is', async () => {
      const locks = await warm();
      const lock = await take(locks, newKey());
      lose();
      expect(await locks.status(lock.key)).toMatchObject({ state: 'held' });
    });

    it('a waiter keeps its place, and the one who leaves has left', async () => {
      const locks = await warm();
      const lock = await take(bed.locks(), newKey());
      lose();
      const waiting = locks.acquire(lock.key, { ttlMs: 30_000, waitMs: 700 });
      await until(async () => (await bed.locks().status(lock.key)).queue === 1);
      lose();
      expect((await waiting).outcome).toBe('timedOut');
      expect((await bed.locks().status(lock.key)).queue).toBe(0);
    });
  });

  describe('because it is late', () => {
    it('F20: acquire fails at its limit, and what arrives later grants nothing', async () => {
      const locks = await warm(300);
      const key = newKey();
      proxy.judge = once(key, { delayMs: 900 });
      const { ms, error } = await timed(locks.acquire(key, { ttlMs: 30_000 }));
      expect(error).toMatchObject({ code: 'unavailable' });
      expect(ms).toBeLessThan(700);
      const { delivered } = proxy;
      await until(() => proxy.delivered > delivered);
      await until(async () => (await bed.redis.ping()) && (await locks.status(key).catch(() => undefined)));
      expect(await bed.redis.exists(key)).toBe(0);
      expect((await bed.locks().acquire(key, { ttlMs: 1000 })).outcome).toBe('acquired');
    });

    it('grants nothing by the latest time that it carries alone, where giving up could not be told either', async () => {
      const locks = await warm(300);
      const key = newKey();
      proxy.judge = once(key, { delayMs: 600 });
      const failing = locks.acquire(key, { ttlMs: 30_000 });
      const { delivered } = proxy;
      proxy.refusing = true; // the connection that is made after giving up
      await expect(failing).rejects.toMatchObject({ code: 'unavailable' });
      await until(() => proxy.delivered > delivered);
      await bed.redis.ping();
      expect(await bed.redis.exists(key)).toBe(0);
    });

    it('the same id may try again at once, for the mark is on the call and not on the id', async () => {
      const locks = await warm(300);
      const key = newKey();
      proxy.judge = once(key, { delayMs: 500 });
      await expect(locks.acquire(key, { ttlMs: 30_000, lockId: 'mine' })).rejects.toMatchObject({ code: 'unavailable' });
      expect((await take(locks, key, { lockId: 'mine' })).fencingToken).toBeGreaterThan(0);
    });

    it('a repeated acquire that fails leaves alone what this id held before', async () => {
      const locks = await warm(300);
      const lock = await take(locks, newKey(), { lockId: 'mine' });
      await new Promise((resolve) => setTimeout(resolve, 120));
      proxy.judge = once(lock.key, 'swallow');
      await expect(locks.acquire(lock.key, { ttlMs: 30_000, lockId: 'mine' })).rejects.toMatchObject({ code: 'unavailable' });
      // What is told in the background comes before this on the same connection.
      expect((await lock.heartbeat()).outcome).toBe('alive');
      expect((await lock.heartbeat()).outcome).toBe('alive');
    });
  });

  describe('because the socket is half open', () => {
    it('a call fails at its limit, and the next one has a connection again', async () => {
      const locks = await warm(400);
      const key = newKey();
      proxy.judge = once('evalsha', 'swallow');
      const { ms, error } = await timed(locks.acquire(key, { ttlMs: 30_000 }));
      expect(error).toMatchObject({ code: 'unavailable' });
      expect(ms).toBeGreaterThanOrEqual(399);
      expect(ms).toBeLessThan(900);
      await until(async () => (await locks.acquire(key, { ttlMs: 1000 }).catch(() => undefined))?.outcome === 'acquired');
    });
  });

  describe('because there is no connection', () => {
    it('F20: acquire fails at its limit, and nothing is locked when the connection is back', async () => {
      const locks = await warm(400);
      const key = newKey();
      proxy.refusing = true;
      proxy.cut();
      const { ms, error } = await timed(locks.acquire(key, { ttlMs: 30_000 }));
      expect(error).toMatchObject({ code: 'unavailable' });
      expect(ms).toBeLessThan(900);
      proxy.refusing = false;
      await until(async () => await locks.status(key).catch(() => undefined));
      expect(await bed.redis.exists(key)).toBe(0);
    });

    it('F21: cut at any moment: every call settles, and no lock stays behind', async () => {
      const locks = await warm(5000);
      const keys = Array.from({ length: 100 }, () => newKey());
      let [answers, cuts, next] = [0, 0, 5];
      // By progress, not by the clock, for then a slow machine would be cut at each attempt: once before Redis has a command,
      // once after it.
      proxy.judge = (command) => {
        if (answers < next || !command.includes('w4:')) return 'pass';
        next = answers + 12;
        setImmediate(() => proxy.cut());
        return ++cuts % 2 ? 'swallow' : 'loseReply';
      };
      const counted = async <T>(call: Promise<T>): Promise<T> => {
        const answer = await call;
        answers += 1;
        return answer;
      };
      const results = await Promise.allSettled(
        keys.map(async (key, i) => {
          await new Promise((resolve) => setTimeout(resolve, i * 4));
          const lock = await counted(take(locks, key, { ttlMs: 60_000 }));
          await counted(lock.heartbeat());
          return counted(lock.release());
        }),
      );
      proxy.judge = () => 'pass';
      expect(cuts).toBeGreaterThan(2);
      for (const result of results) {
        if (result.status === 'rejected') expect(result.reason).toMatchObject({ code: 'unavailable' });
      }
      const failed = keys.filter((_, i) => results[i]!.status === 'rejected');
      // A release that could not be told ends with its lease; everything else must be free.
      const free = keys.filter((key) => !failed.includes(key));
      expect(free.length).toBeGreaterThan(50);
      expect(await bed.redis.exists(...free)).toBe(0);
    }, 15_000);

    it('a waiter stays a waiter during an outage that is longer than the command limit', async () => {
      const locks = await warm(300);
      const key = newKey();
      const holder = await take(bed.locks(), key, { ttlMs: 60_000 });
      const waiting = locks.acquire(key, { ttlMs: 30_000, waitMs: 30_000 });
      await until(async () => (await bed.locks().status(key)).queue === 1);
      // The call that asks again is in flight and never answered.
      proxy.judge = (command) => (command.includes(key) ? 'swallow' : 'pass');
      const waiters = (locks as unknown as { waiters: { line: { all(): Array<{ notify(): void }> } } }).waiters;
      waiters.line.all().forEach((waiter) => waiter.notify());
      await new Promise((resolve) => setTimeout(resolve, 500));
      proxy.cut();
      proxy.judge = () => 'pass';
      await until(async () => await locks.status(key).catch(() => undefined));
      expect((await bed.locks().status(key)).queue).toBe(1);
      await holder.release();
      expect((await waiting).outcome).toBe('acquired');
    }, 15_000);

    it('an abort does not wait for Redis to come back to tell its own reason', async () => {
      const locks = await warm(500);
      const key = newKey();
      await take(bed.locks(), key, { ttlMs: 60_000 });
      const stop = new AbortController();
      const waiting = locks.acquire(key, { ttlMs: 30_000, waitMs: 30_000, signal: stop.signal });
      await until(async () => (await bed.locks().status(key)).queue === 1);
      proxy.refusing = true;
      proxy.cut();
      stop.abort(new Error('stopped'));
      const { ms, error } = await timed(waiting);
      expect(error!.message).toBe('stopped');
      expect(ms).toBeLessThan(1000);
      proxy.refusing = false;
      // It is told as soon as it can be.
      await until(async () => (await bed.locks().status(key)).queue === 0, 8000, 50);
    }, 15_000);

    it('F60: a heartbeat fails with a clear error, and the next one renews', async () => {
      const lock = await take(await warm(300), newKey());
      proxy.refusing = true;
      proxy.cut();
      await expect(lock.heartbeat()).rejects.toMatchObject({ name: 'RedisLockError', code: 'unavailable' });
      proxy.refusing = false;
      await until(async () => (await lock.heartbeat().catch(() => undefined))?.outcome === 'alive');
    });
  });

  it('F22: loses nobody his turn when the message of the grant is lost with both connections', async () => {
    const locks = await warm();
    const key = newKey();
    const holder = await take(bed.locks(), key);
    const waiting = locks.acquire(key, { ttlMs: 30_000, waitMs: 20_000 });
    await until(async () => (await bed.locks().status(key)).queue === 1);
    const released = holder.release();
    proxy.cut();
    await released;
    const { ms, value } = await timed(waiting);
    expect(value!.outcome).toBe('acquired');
    expect(ms).toBeLessThan(5500);
  }, 15_000);

  it('is no reason to miss a release while the subscription is still being made', async () => {
    const locks = await warm();
    const key = newKey();
    const holder = await take(bed.locks(), key);
    proxy.judge = (command): Fate => (/subscribe/i.test(command) ? { delayMs: 300 } : 'pass');
    const waiting = locks.acquire(key, { ttlMs: 30_000, waitMs: 20_000 });
    await new Promise((resolve) => setTimeout(resolve, 100));
    await holder.release();
    const { ms, value } = await timed(waiting);
    expect(value!.outcome).toBe('acquired');
    expect(ms).toBeLessThan(2000);
  });
});

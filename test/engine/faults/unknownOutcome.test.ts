import type { RedisOptions } from 'ioredis';
import { newKey, take, useBed, useProxy, wait, won } from '../support/bed';
import { startChild } from '../support/child';
import { Gate, once, type Fate } from '../support/proxy';
import { timed, until } from '../support/until';
import { inLine } from '../support/state';

/** Nobody can know whether the last command was executed: its connection dropped, or its process died. */
describe('a lock whose outcome is unknown', () => {
  const bed = useBed();
  const proxy = useProxy(bed);
  const limitMs = 800;
  /** A client of the caller's, with rules of its own about what is sent again. */
  const handedIn = (options: RedisOptions) => {
    const redis = bed.clientOf(proxy.url, options);
    return { redis, locks: bed.locks({ commandTimeoutMs: limitMs }, { redis }) };
  };

  it('F20: is not taken later by a caller who gave up while the client was away', async () => {
    const { redis, locks } = handedIn({ enableOfflineQueue: true });
    await (await take(locks, newKey())).release();
    const [before, after] = [newKey(), newKey()];
    proxy.refusing = true;
    proxy.cut();
    // One that does not know yet that the connection is gone, and one that does.
    const first = timed(locks.acquire(before, { ttlMs: 60_000 }));
    await until(() => redis.status !== 'ready');
    const second = timed(locks.acquire(after, { ttlMs: 60_000 }));
    for (const { ms, error } of await Promise.all([first, second])) {
      expect(error).toMatchObject({ name: 'RedisLockError', code: 'unavailable' });
      expect(ms).toBeLessThan(limitMs + 2000);
    }
    proxy.refusing = false;
    // Whatever lay in a queue comes before this on the same connection.
    await until(() => redis.status === 'ready');
    expect(await redis.ping()).toBe('PONG');
    await until(async () => (await locks.status(before).catch(() => undefined))?.state === 'free');
    expect(await locks.status(after)).toMatchObject({ state: 'free' });
    expect(await bed.redis.exists(before, after)).toBe(0);
  }, 15_000);

  it.each([
    ['sends nothing again', { autoResendUnfulfilledCommands: false }],
    ['queues nothing', { enableOfflineQueue: false, autoResendUnfulfilledCommands: false }],
    ['sends everything again', { autoResendUnfulfilledCommands: true, maxRetriesPerRequest: null }],
  ])('F21: is told by the limit, when the connection drops for good under a client that %s', async (_, options) => {
    const { redis, locks } = handedIn(options);
    await until(() => redis.status === 'ready');
    const [held, lent] = [await take(locks, newKey()), await take(locks, newKey())];
    const free = newKey();
    const calls: Array<[string, () => Promise<unknown>]> = [
      [free, () => locks.acquire(free, { ttlMs: 60_000 })],
      [held.key, () => held.heartbeat()],
      [held.key, () => locks.status(held.key)],
      [lent.key, () => lent.release()],
    ];
    for (const [key, call] of calls) {
      let dropped = false;
      proxy.judge = (command): Fate => {
        if (dropped || !command.includes(key)) return 'pass';
        dropped = proxy.refusing = true;
        return 'loseReply';
      };
      const { ms, error } = await timed(call());
      expect(dropped).toBe(true);
      expect(error).toMatchObject({ name: 'RedisLockError', code: 'unavailable' });
      expect(ms).toBeLessThan(limitMs + 2000);
      proxy.judge = () => 'pass';
      proxy.refusing = false;
      await until(() => redis.status === 'ready');
    }
    // The acquire was executed, and its caller was told that it has nothing.
    await until(async () => (await bed.locks().status(free)).state === 'free');
    expect((await held.heartbeat()).outcome).toBe('alive');
    expect((await lent.release()).outcome).toBe('alreadyReleased');
  }, 20_000);

  it.each([1, 2, 3, 4, 5, 6])('F25: is not lost for good with a process that is killed at its command number %i', async (number) => {
    const key = newKey();
    const child = await startChild(proxy.url);
    const killed = new Gate();
    let commands = 0;
    proxy.judge = (command) => {
      if (command.includes(key) && ++commands === number) {
        child.signal('SIGKILL');
        killed.open();
      }
      return 'pass';
    };
    void (async () => {
      for (;;) {
        await child.acquire('lock', key, { ttlMs: 1000 });
        await child.heartbeat('lock');
        await child.release('lock');
        await child.acquire('lock', key, { ttlMs: 1000, waitMs: 0 });
        await child.release('lock');
      }
    })();
    await killed.opened;
    const lock = await take(bed.locks(), key, { waitMs: 15_000 });
    // Its lease, and 5 s at most for those who wait.
    expect(lock.grant.waitedMs).toBeLessThan(6000);
    expect(await bed.keysWithoutTtl()).toEqual([]);
    expect((await lock.release()).outcome).toBe('released');
  }, 25_000);

  it('F25: is not lost for its whole lease with a process that is killed between the hand-over and its claim', async () => {
    const key = newKey();
    const locks = bed.locks();
    const holder = await take(locks, key);
    const child = await startChild(bed.server.url);
    void child.acquire('lock', key, { ttlMs: 600_000, waitMs: 60_000 });
    await inLine(bed.redis, key, 1);
    child.signal('SIGSTOP');
    await holder.release();
    await until(async () => (await locks.status(key)).queue === 0);
    child.signal('SIGKILL');
    const lock = await won(wait(locks, key));
    expect(lock.grant.waitedMs).toBeLessThan(6000);
    expect((await lock.release()).outcome).toBe('released');
  }, 25_000);

  it('F19: is had once, also where it was got by waiting and the answer was lost', async () => {
    const key = newKey();
    const locks = bed.locks({}, { url: proxy.url });
    const eyes = bed.locks();
    const holder = await take(eyes, key);
    const waiting = wait(locks, key);
    await inLine(bed.redis, key, 1);
    proxy.judge = once(key, 'loseReply');
    await holder.release();
    const lock = await won(waiting);
    expect((await lock.claim)?.outcome).toBe('alive');
    expect((await eyes.status(key)).holders).toMatchObject([{ fencingToken: lock.fencingToken }]);
    expect((await lock.release()).outcome).toBe('released');
    expect(await eyes.status(key)).toMatchObject({ state: 'free', queue: 0 });
  }, 25_000);
});

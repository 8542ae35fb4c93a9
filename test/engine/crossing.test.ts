import type { Lock } from '../../engine';
import { newKey, take, useBed, useProxy } from './support/bed';
import { commandsDuring } from './support/commands';
import { once } from './support/proxy';
import { expire, inLine } from './support/state';
import { until } from './support/until';

/** What happens when a hand-over, its claim, a time-out or an abort cross each other: each order is forced. */
describe('a hand-over', () => {
  const bed = useBed();
  const proxy = useProxy(bed);

  /** A process behind the proxy that waits for a lock which another one holds. */
  const parked = async (options: { confirm?: boolean } = {}) => {
    const [holder, locks] = [bed.locks(), bed.locks({}, { url: proxy.url })];
    const key = newKey();
    // The script that claims is known to this connection already, so that its call can be told by its hash.
    const warm = await take(locks, newKey('warm'));
    await warm.heartbeat();
    await warm.release();
    const held = await take(holder, key);
    const waiting = locks.acquire(key, { ttlMs: 30_000, waitMs: 20_000, ...options });
    await inLine(bed.redis, key, 1);
    return { key, held, waiting, locks };
  };
  const won = async (waiting: Promise<{ outcome: string }>) => {
    const result = (await waiting) as { outcome: string; lock?: Lock };
    if (!result.lock) throw new Error(result.outcome);
    return result.lock;
  };

  it('is entered on its message, and is a lease of the full TTL when the claim is confirmed', async () => {
    const { held, waiting } = await parked();
    proxy.judge = once('evalsha', { delayMs: 500 });
    await held.release();
    const lock = await won(waiting);
    expect(lock.expiresInMs()).toBeGreaterThan(1000);
    expect(lock.expiresInMs()).toBeLessThanOrEqual(3000);
    expect(await lock.claim).toMatchObject({ outcome: 'alive', fencingToken: lock.fencingToken });
    expect(lock.expiresInMs()).toBeGreaterThan(25_000);
    expect((await lock.release()).outcome).toBe('released');
  });

  it('is entered only when Redis has confirmed it, where that was asked for', async () => {
    const { held, waiting } = await parked({ confirm: true });
    proxy.judge = once('evalsha', { delayMs: 300 });
    await held.release();
    expect(await Promise.race([waiting, new Promise((resolve) => setTimeout(resolve, 150, 'not yet'))])).toBe('not yet');
    const lock = await won(waiting);
    expect(lock.claim).toBeUndefined();
    expect(lock.expiresInMs()).toBeGreaterThan(25_000);
  });

  it('is not entered on a message that is not fresh, before Redis was asked', async () => {
    const { key, held, waiting, locks } = await parked();
    const { waiters } = locks as unknown as { waiters: { transitions: { calls: { since(at: number): number } } } };
    // As after a pause of the process: the message is two seconds old.
    const { calls } = waiters.transitions;
    const { since } = calls;
    calls.since = function (at) {
      return since.call(this, at) + 2000;
    };
    await held.release();
    const lock = await won(waiting);
    expect(lock.claim).toBeUndefined();
    expect(lock.expiresInMs()).toBeGreaterThan(25_000);
    expect((await locks.status(key)).holders).toMatchObject([{ fencingToken: lock.fencingToken, ttlMs: 30_000 }]);
  });

  it('is void when its time ran out before the claim came: the waiter keeps its ticket, and is served in its old place', async () => {
    const { key, held, waiting } = await parked({ confirm: true });
    const [ticket] = (await bed.redis.zrange(`{${key}}:rl:line`, '0', '0', 'WITHSCORES')).slice(1);
    const later = bed.locks().acquire(key, { ttlMs: 30_000, waitMs: 20_000 });
    await inLine(bed.redis, key, 2);
    proxy.judge = once('evalsha', { delayMs: 1000 });
    await held.release();
    const id = (await bed.redis.hkeys(`{${key}}:rl:lock`)).find((field) => field.startsWith('@'))!.slice(1);
    await expire(bed.redis, key, id);
    // Anybody's call finds that it ran out, and serves the next.
    expect((await bed.locks().acquire(key, { ttlMs: 1000 })).outcome).toBe('busy');
    const second = await won(later);
    expect(await bed.redis.zscore(`{${key}}:rl:line`, id)).toBe(ticket);
    // The claim comes, and is answered by the place in line.
    await until(async () => proxy.delivered > 0);
    await until(async () => !(await bed.redis.hkeys(`{${key}}:rl:lock`)).some((field) => field.startsWith('~')), 8000);
    await second.release();
    expect((await waiting).outcome).toBe('acquired');
  }, 20_000);

  it('that was entered is lost when its claim comes too late, and everybody says so', async () => {
    const { key, held, waiting, locks } = await parked();
    const next = bed.locks();
    const later = next.acquire(key, { ttlMs: 30_000, waitMs: 20_000 });
    await inLine(bed.redis, key, 2);
    proxy.judge = once('evalsha', { delayMs: 700 });
    await held.release();
    const lock = await won(waiting);
    await expire(bed.redis, key, lock.lockId);
    expect((await bed.locks().acquire(key, { ttlMs: 1000 })).outcome).toBe('busy');
    const second = await won(later);

    expect(await lock.claim).toMatchObject({ outcome: 'lost', reason: 'expired' });
    expect(lock.expiresInMs()).toBe(0);
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'expired' });
    expect(await lock.release()).toMatchObject({ outcome: 'notHeld', reason: 'expired' });
    expect(second.fencingToken).toBeGreaterThan(lock.fencingToken);
    // Its place in line is nobody's any more.
    await until(async () => (await locks.status(key)).queue === 0);
    expect((await second.heartbeat()).outcome).toBe('alive');
  }, 20_000);

  it('aborts the work of `using` when its claim comes too late', async () => {
    const [holder, locks] = [bed.locks(), bed.locks({}, { url: proxy.url })];
    const key = newKey();
    const warm = await take(locks, newKey('warm'));
    await warm.heartbeat();
    const held = await take(holder, key);
    let entered: Lock | undefined;
    const work = locks.using(key, { ttlMs: 30_000, waitMs: 20_000 }, async (lock, signal) => {
      entered = lock;
      await new Promise((resolve) => signal.addEventListener('abort', resolve));
      return String((signal.reason as Error).message);
    });
    await inLine(bed.redis, key, 1);
    proxy.judge = once('evalsha', { delayMs: 500 });
    await held.release();
    await until(() => entered !== undefined);
    await expire(bed.redis, key, entered!.lockId);
    expect((await holder.acquire(key, { ttlMs: 30_000 })).outcome).toBe('acquired');
    expect(await work).toMatchObject({ outcome: 'done', value: expect.stringContaining('expired'), release: { outcome: 'notHeld' } });
  }, 20_000);

  it('that ran out is claimed in vain, and leaves the next one alone, whose message is on its way', async () => {
    const locks = bed.locks();
    const key = newKey();
    const held = await take(bed.locks(), key);
    // Messages come when the test says so.
    const { waiters } = locks as unknown as { waiters: { handOver(message: { fence: number }): void } };
    const { handOver } = waiters;
    const messages: Array<{ fence: number }> = [];
    waiters.handOver = (message) => void messages.push(message);
    const waiting = locks.acquire(key, { ttlMs: 30_000, waitMs: 20_000, lockId: 'the-waiter', confirm: true });
    await inLine(bed.redis, key, 1);
    await held.release();
    await until(() => messages.length === 1);
    await expire(bed.redis, key, 'the-waiter');
    // Another caller of this process speaks for it: the waiter is handed the lock again, in its old place.
    const passing = await bed.locks().acquire(key, { ttlMs: 1000, waitMs: 0 });
    if (passing.outcome === 'acquired') await passing.lock.release();
    await locks.acquire(key, { ttlMs: 1000, waitMs: 0 });
    await until(() => messages.length === 2);
    const [first, second] = messages as [{ fence: number }, { fence: number }];

    handOver.call(waiters, first);
    const lock = await won(waiting);
    handOver.call(waiters, second);
    expect(lock.fencingToken).toBe(second.fence);
    expect(await lock.heartbeat()).toMatchObject({ outcome: 'alive', fencingToken: second.fence });
    expect(second.fence).toBeGreaterThan(first.fence);
  }, 20_000);

  it('that is over is neither renewed nor given back in place of a newer lease of the same id', async () => {
    const locks = bed.locks();
    const key = newKey();
    const first = await take(locks, key, { lockId: 'the-same' });
    await expire(bed.redis, key, 'the-same');
    const between = await take(locks, key);
    await between.release();
    const second = await take(locks, key, { lockId: 'the-same' });
    expect(await first.heartbeat()).toMatchObject({ outcome: 'lost', reason: 'expired' });
    expect(await first.release()).toMatchObject({ outcome: 'notHeld', reason: 'expired' });
    expect(await second.heartbeat()).toMatchObject({ outcome: 'alive', fencingToken: second.fencingToken });
  });

  it('may cross the release of who entered: nothing is left', async () => {
    const { key, held, waiting, locks } = await parked();
    await held.release();
    const lock = await won(waiting);
    expect((await lock.release()).outcome).toBe('released');
    expect(lock.expiresInMs()).toBe(0);
    await lock.claim;
    expect(lock.expiresInMs()).toBe(0);
    expect(await locks.status(key)).toMatchObject({ state: 'free', queue: 0 });
  });

  it('that crosses many time-outs of one moment makes one holder, and the others leave together', async () => {
    const [holder, locks] = [bed.locks(), bed.locks()];
    const key = newKey();
    const held = await take(holder, key);
    const results: string[] = [];
    const waits = Array.from({ length: 1000 }, () =>
      locks.acquire(key, { ttlMs: 30_000, waitMs: 1500 }).then((result) => {
        results.push(result.outcome);
        if (result.outcome === 'timedOut') expect(result).toMatchObject({ holders: [{}] });
        return result;
      }),
    );
    await inLine(bed.redis, key, 1000);
    await new Promise((resolve) => setTimeout(resolve, 1000));
    const counts = await commandsDuring(bed.redis, async () => {
      await until(() => results.length > 0, 5000, 1);
      await held.release();
      await Promise.all(waits);
    });
    const acquired = results.filter((outcome) => outcome === 'acquired').length;
    expect(acquired).toBeLessThanOrEqual(1);
    expect(results.filter((outcome) => outcome === 'timedOut')).toHaveLength(1000 - acquired);
    // Leaving, the release, and a claim; not one for each.
    expect((counts.eval ?? 0) + (counts.evalsha ?? 0)).toBeLessThanOrEqual(20);
    expect((await holder.status(key)).holders).toHaveLength(acquired);
  }, 20_000);
});

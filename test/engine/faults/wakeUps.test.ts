import { setTimeout as delay } from 'node:timers/promises';
import { newKey, take, useBed, useProxy, wait, won } from '../support/bed';
import { startChild } from '../support/child';
import { commandsDuring } from '../support/commands';
import { Gate, SUBSCRIBE, type Fate } from '../support/proxy';
import { timed, until } from '../support/until';
import { inLine } from '../support/state';

/** Far more than a message takes, and less than it takes to find a grant without one. */
const SOON_MS = 3000;
const sum = (counts: Record<string, number>) => Object.values(counts).reduce((total, count) => total + count, 0);

/** Messages that come too early, too late, to a slow process or to nobody, and messages that nobody needs any more. */
describe('a wake-up', () => {
  const bed = useBed();
  const proxy = useProxy(bed);
  const behindProxy = () => bed.locks({}, { url: proxy.url });

  /** Holds every subscription back, from now until `released` is opened. */
  const holdSubscriptions = () => {
    const [subscribing, released] = [new Gate(), new Gate()];
    proxy.judge = (command): Fate => {
      if (!SUBSCRIBE.test(command)) return 'pass';
      subscribing.open();
      return { after: released.opened };
    };
    return { subscribing, released };
  };

  it('F1: comes, though the lock was released while the subscription was being made', async () => {
    const key = newKey();
    const holder = await take(bed.locks(), key);
    const { subscribing, released } = holdSubscriptions();
    const waiting = wait(behindProxy(), key);
    await subscribing.opened;
    expect((await holder.release()).outcome).toBe('released');
    released.open();
    const { ms, value } = await timed(waiting);
    expect(value!.outcome).toBe('acquired');
    expect(ms).toBeLessThan(SOON_MS);
  }, 25_000);

  it('F22: comes, though the lock was released when commands passed again and the subscription did not yet', async () => {
    const key = newKey();
    const [eyes, locks] = [bed.locks(), behindProxy()];
    const holder = await take(eyes, key);
    const waiting = wait(locks, key);
    await inLine(bed.redis, key, 1);

    const { subscribing, released } = holdSubscriptions();
    proxy.cut();
    await subscribing.opened;
    // On the new command connection.
    expect((await locks.status(key)).queue).toBe(1);
    expect((await holder.release()).outcome).toBe('released');
    released.open();
    const { ms, value } = await timed(waiting);
    expect(value!.outcome).toBe('acquired');
    expect(ms).toBeLessThan(SOON_MS);
  }, 25_000);

  it('F18: is not needed by one whose subscriber is connected and hears nothing', async () => {
    const key = newKey();
    const eyes = bed.locks();
    const holder = await take(eyes, key);
    const waiting = wait(behindProxy(), key);
    await inLine(bed.redis, key, 1);
    expect(proxy.silence(SUBSCRIBE)).toBe(1);
    await holder.release();
    const { ms, value } = await timed(waiting);
    expect(value!.outcome).toBe('acquired');
    // It looks every 5 s at the latest.
    expect(ms).toBeLessThan(6000);
  }, 25_000);

  it('F14: reaches a process that is slow to read it', async () => {
    const key = newKey();
    const locks = bed.locks();
    const holder = await take(locks, key);
    const slow = await startChild(bed.server.url);
    const first = slow.acquire('first', key, { ttlMs: 30_000, waitMs: 20_000 });
    await inLine(bed.redis, key, 1);
    const second = wait(locks, key);
    await inLine(bed.redis, key, 2);

    slow.signal('SIGSTOP');
    await holder.release();
    // Handed over to it, which it can't know yet.
    await until(async () => (await locks.status(key)).queue === 1);
    slow.signal('SIGCONT');
    expect((await first).outcome).toBe('acquired');
    expect((await locks.status(key)).queue).toBe(1);
    expect((await slow.heartbeat('first')).outcome).toBe('alive');
    expect((await slow.release('first')).outcome).toBe('released');
    expect((await second).outcome).toBe('acquired');
  }, 25_000);

  it('F13: that nobody needed leaves nothing behind, and the next one to wait waits in peace', async () => {
    const key = newKey();
    const [locks, patient] = [bed.locks(), bed.locks()];
    const left = async () => {
      const names = (await bed.redis.keys(`*${key}*`)).sort();
      const bytes = await Promise.all(names.map((name) => bed.redis.memory('USAGE', name)));
      return { names, bytes: bytes.reduce<number>((total, count) => total + Number(count), 0) };
    };
    const rounds: Array<Awaited<ReturnType<typeof left>>> = [];
    for (let i = 0; i < 60; i++) {
      const holder = await take(locks, key);
      const stop = new AbortController();
      const waiting = wait(patient, key, { signal: stop.signal });
      await inLine(bed.redis, key, 1);
      const releasing = holder.release();
      stop.abort();
      await releasing;
      await waiting.then((result) => won(result).then((lock) => lock.release()), () => {});
      rounds.push(await left());
    }
    for (const { names } of rounds) expect(names).toEqual(rounds[0]!.names);
    const most = (some: typeof rounds) => Math.max(...some.map(({ bytes }) => bytes));
    expect(most(rounds.slice(30))).toBeLessThanOrEqual(most(rounds.slice(0, 30)));

    const holder = await take(locks, key);
    const parked = wait(patient, key);
    await inLine(bed.redis, key, 1);
    const counts = await commandsDuring(bed.redis, () => delay(1500));
    // One that spins sends thousands.
    expect(sum(counts)).toBeLessThan(100);
    await holder.release();
    await (await won(parked)).release();
    expect((await left()).names).toEqual(rounds[0]!.names);
  }, 25_000);

  it('F16: is waited for without work, neither of the process nor of Redis', async () => {
    const key = newKey();
    const waiters = 100;
    await take(bed.locks(), key, { ttlMs: 60_000 });
    const child = await startChild(bed.server.url);
    for (let i = 0; i < waiters; i++) void child.acquire(String(i), key, { ttlMs: 30_000, waitMs: 60_000 });
    await inLine(bed.redis, key, waiters);
    const before = await child.cpuMs();
    const seconds = 3;
    const counts = await commandsDuring(bed.redis, () => delay(seconds * 1000));
    expect((await child.cpuMs()) - before).toBeLessThan(seconds * 200);
    // Less than one a second for each.
    expect(sum(counts)).toBeLessThan(seconds * waiters);
  }, 25_000);
});

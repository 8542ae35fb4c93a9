import { newKey, take, useBed } from './support/bed';
import { startChild } from './support/child';
import { inLine } from './support/state';
import { until } from './support/until';

describe('waiters that do not answer', () => {
  const bed = useBed();
  const child = () => startChild(bed.server.url);

  it.each(['SIGKILL', 'SIGSTOP'] as const)('hold up the line for less than 5 s (%s)', async (signal) => {
    const locks = bed.locks();
    const key = newKey();
    const dead = await child();
    const holder = await take(locks, key, { ttlMs: 60_000 });
    for (const name of ['1', '2', '3']) {
      void dead.acquire(name, key, { ttlMs: 30_000, waitMs: 30_000 });
      await until(async () => (await locks.status(key)).queue === Number(name));
    }
    const living = locks.acquire(key, { ttlMs: 30_000, waitMs: 30_000 });
    await until(async () => (await locks.status(key)).queue === 4);

    dead.signal(signal);
    const started = performance.now();
    await holder.release();
    expect((await living).outcome).toBe('acquired');
    expect(performance.now() - started).toBeLessThan(5000);
  }, 20_000);

  it('keep their place if they wake up again', async () => {
    const locks = bed.locks();
    const key = newKey();
    const frozen = await child();
    const holder = await take(locks, key, { ttlMs: 60_000 });
    const first = frozen.acquire('1', key, { ttlMs: 30_000, waitMs: 30_000 });
    await until(async () => (await locks.status(key)).queue === 1);
    const second = locks.acquire(key, { ttlMs: 30_000, waitMs: 30_000 });
    await until(async () => (await locks.status(key)).queue === 2);
    const third = locks.acquire(key, { ttlMs: 30_000, waitMs: 30_000 });
    await until(async () => (await locks.status(key)).queue === 3);

    frozen.signal('SIGSTOP');
    await holder.release();
    const won = await second;
    if (won.outcome !== 'acquired') throw new Error(won.outcome);
    frozen.signal('SIGCONT');
    // It asks again by itself, and is then heard.
    await until(async () => !(await bed.redis.hkeys(`{${key}}:rl:lock`)).some((field) => field.startsWith('~')), 8000);
    await won.lock.release();
    expect((await first).outcome).toBe('acquired');
    expect((await locks.status(key)).queue).toBe(1);
    expect((await frozen.release('1')).outcome).toBe('released');
    expect((await third).outcome).toBe('acquired');
  }, 20_000);

  it('F5: are no burden when all of them were killed: a newcomer enters at once', async () => {
    const locks = bed.locks();
    const key = newKey();
    const dead = await child();
    const holder = await take(locks, key, { ttlMs: 60_000 });
    for (const name of ['1', '2', '3']) void dead.acquire(name, key, { ttlMs: 30_000, waitMs: 30_000 });
    await inLine(bed.redis, key, 3);
    await dead.stop();
    await until(async () => ((await bed.redis.pubsub('CHANNELS', '*')) as string[]).length === 0);
    await holder.release();
    expect((await locks.acquire(key, { ttlMs: 1000 })).outcome).toBe('acquired');
  }, 20_000);

  it('F2: may have lost their subscriber only: it comes back, and nobody loses his place', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(bed.locks(), key, { ttlMs: 60_000 });
    const waits = [1, 2, 3].map(() => locks.acquire(key, { ttlMs: 30_000, waitMs: 30_000 }));
    waits.forEach((wait) => wait.catch(() => {}));
    await until(async () => (await locks.status(key)).queue === 3);
    await bed.redis.call('CLIENT', 'KILL', 'TYPE', 'pubsub');
    const started = performance.now();
    await holder.release();
    const won = await waits[0]!;
    expect(won.outcome).toBe('acquired');
    expect(performance.now() - started).toBeLessThan(3000);
  });

  it('may be unable to listen at all: they look for themselves', async () => {
    const locks = bed.locks();
    const key = newKey();
    const holder = await take(bed.locks(), key, { ttlMs: 60_000 });
    const waiting = locks.acquire(key, { ttlMs: 30_000, waitMs: 30_000 });
    await until(async () => (await locks.status(key)).queue === 1);
    const wakeUp = (locks as unknown as { waiters: { wakeUp: { client: { disconnect(): void } } } }).waiters.wakeUp;
    wakeUp.client.disconnect();
    await until(async () => ((await bed.redis.pubsub('CHANNELS', '*')) as string[]).length === 0);
    const started = performance.now();
    await holder.release();
    expect((await waiting).outcome).toBe('acquired');
    expect(performance.now() - started).toBeLessThan(6000);
  }, 15_000);
});
